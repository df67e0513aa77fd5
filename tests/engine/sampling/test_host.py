"""The host's sampler: its random numbers, and a batch whose rows do not disturb each other."""

import torch
from sampling_helpers import random_logits, sampled

from labkit import SamplingParams
from labkit.engine.sampling import sample, uniform_number

# --- the random numbers ----------------------------------------------------------------------------


class SplitMix64:
    """The generator as its authors give it: state and all."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)


def test_this_files_splitmix64_gives_the_published_numbers():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    generator = SplitMix64(1234567)
    assert [generator.next() for _ in published] == published


def test_a_seeds_numbers_are_splitmix64_begun_at_the_mixed_seed():
    for seed, mixed in ((0, 0), (0x9E3779B97F4A7C15, SplitMix64(0).next())):  # mixing is `next` less its step
        generator = SplitMix64(mixed)
        expected = [(generator.next() >> 11) / 2**53 for _ in range(100)]
        assert [uniform_number(seed, i) for i in range(100)] == expected
    assert uniform_number(0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53


# --- sampling a batch ------------------------------------------------------------------------------


def test_greedy_rows_take_the_likeliest_token_whatever_else_is_set():
    logits = random_logits(3, 100)
    params = [SamplingParams(), SamplingParams(top_k=1), SamplingParams(top_p=0.1, seed=4)]
    assert sample(logits, params, [0.1, 0.5, 0.9]) == logits.argmax(dim=-1).tolist()


def test_huge_but_finite_logits_still_give_a_token():
    logits = torch.tensor([[-3e38, 3e38, 0.0]] * 2)
    assert sample(logits, [SamplingParams(), sampled(temperature=0.01)], [0.9, 0.9]) == [1, 1]
