"""The host's sampler: its random numbers, and a batch whose rows do not disturb each other."""

import torch
from sampling_helpers import sampled

from labkit import SamplingParams
from labkit.engine.sampling import sample, uniform_number

# --- the random numbers ----------------------------------------------------------------------------


def test_a_seeds_numbers_are_splitmix64_begun_at_the_mixed_seed():
    """Those that are published for a state of 1234567, which this seed becomes when it is mixed."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    seed = 0x4373FDBF155465A3
    assert [uniform_number(seed, i) for i in range(5)] == [(number >> 11) / 2**53 for number in published]
    assert uniform_number(0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53


# --- sampling a batch ------------------------------------------------------------------------------


def test_huge_but_finite_logits_still_give_a_token():
    logits = torch.tensor([[-3e38, 3e38, 0.0]] * 2)
    assert sample(logits, [SamplingParams(), sampled(temperature=0.01)], [0.9, 0.9]) == [1, 1]
