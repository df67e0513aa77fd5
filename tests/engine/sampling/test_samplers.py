"""The device's sampler against the host's: the same tokens, bit for bit, and nothing read back."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from helpers import make_engine, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from sampling_helpers import random_logits, sampled
from torch import Tensor

from labkit import LADDER, SamplingParams
from labkit.engine.sampling import sample, sample_any, sample_greedy, uniform_number
from labkit.engine.sampling.device import NO_TOKEN
from labkit.engine.sampling.host import rows_state
from labkit.kernels.distribution import (
    SamplingState,
    as_int64,
    pack_states,
    uniform_numbers,
    unpack_states,
)

SEEDS = [
    0,
    1,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64 - 1,
    2**64,
    2**70 + 5,
    -(2**70),
    0x9E3779B97F4A7C15,
]
INDICES = [0, 1, 2, 1023, 2**31 - 1, 2**40]


def state_of(
    params: Sequence[SamplingParams], seeds: Sequence[int], indices: Sequence[int], device: torch.device
) -> SamplingState:
    """With every filter there, as buffers of a graph have them."""
    rows = zip(params, seeds, indices, strict=True)
    return unpack_states(torch.from_numpy(pack_states([p.state(*rest) for p, *rest in rows])).to(device))


def on_host(
    logits: Tensor, params: Sequence[SamplingParams], seeds: Sequence[int], indices: Sequence[int]
) -> list[int]:
    tokens = sample(logits, params, [uniform_number(*pair) for pair in zip(seeds, indices, strict=True)])
    return [NO_TOKEN if token is None else token for token in tokens]


def on_device(
    logits: Tensor,
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    indices: Sequence[int],
    with_all_filters: bool = False,
) -> list[int]:
    device = logits.device
    state = state_of(params, seeds, indices, device)
    if not with_all_filters:
        state = rows_state(params, device)._replace(seeds=state.seeds, draws=state.draws)
    tokens = sample_any(logits, state)
    assert tokens.dtype == torch.int64 and tokens.shape == logits.shape[:1] and tokens.device == device
    return tokens.tolist()


# --- the random numbers ----------------------------------------------------------------------------


def assert_numbers_are_the_hosts(seeds: Sequence[int], indices: Sequence[int], device: str = "cpu") -> None:
    actual = uniform_numbers(
        torch.tensor([as_int64(seed) for seed in seeds], device=device), torch.tensor(indices, device=device)
    )
    assert actual.dtype == torch.float64
    assert actual.tolist() == [uniform_number(*pair) for pair in zip(seeds, indices, strict=True)]


@given(st.lists(st.tuples(st.integers(-(2**80), 2**80), st.integers(0, 2**62)), min_size=1, max_size=20))
def test_a_rows_number_is_the_hosts_to_the_last_bit(pairs: list[tuple[int, int]]):
    assert_numbers_are_the_hosts(*zip(*pairs, strict=True))


# --- the same tokens as the host's -----------------------------------------------------------------

BATCHES = st.tuples(st.integers(1, 6), st.integers(1, 40)).flatmap(
    lambda shape: st.tuples(
        st.integers(0, 2**31),  # for the random logits
        st.sampled_from([0.1, 3.0, 1e4, 1e37]),  # their scale
        st.lists(  # other logits, by place
            st.tuples(
                st.integers(0, shape[0] - 1),
                st.integers(0, shape[1] - 1),
                st.sampled_from([0.0, 0.0, 1.0, 5.0, -math.inf, -math.inf, math.nan, math.inf, 3e38, -3e38]),
            ),
            max_size=20,
        ),
        st.booleans(),  # rounded, so that many tie
        st.lists(
            st.builds(
                SamplingParams,
                temperature=st.sampled_from([0, 5e-324, 1e-50, 1e-40, 1e-9, 0.3, 1.0, 5, 1e30, 1.7e308]),
                top_k=st.sampled_from([0, 0, 1, 2, 5, shape[1], shape[1] + 1, 10**30]),
                top_p=st.sampled_from([1.0, 1, 1 - 2**-53, 0.9, 0.75, 0.5, 0.1, 1e-9, 1e-300])
                | st.floats(0.01, 1),
                min_p=st.sampled_from([0, 0.0, 1e-300, 0.05, 0.5, 1.0]) | st.floats(0, 1),
                seed=st.integers(-(2**66), 2**66) | st.sampled_from(SEEDS),
            ),
            min_size=shape[0],
            max_size=shape[0],
        ),
        st.lists(st.integers(0, 2**40), min_size=shape[0], max_size=shape[0]),
        st.just(shape),
    )
)


@pytest.mark.slow
@given(BATCHES)
def test_any_batch_has_the_hosts_tokens(batch: tuple):
    seed, scale, others, rounded, params, indices, shape = batch
    logits = random_logits(*shape, scale=scale, seed=seed)
    logits = logits.round() if rounded else logits
    for b, v, value in others:
        logits[b, v] = value
    seeds = [p.seed for p in params]
    expected = on_host(logits, params, seeds, indices)
    assert on_device(logits, params, seeds, indices) == expected
    assert on_device(logits, params, seeds, indices, with_all_filters=True) == expected
    assert all(token == NO_TOKEN or logits[b, token] > -math.inf for b, token in enumerate(expected))
    greedy = on_host(logits, [SamplingParams()] * len(params), seeds, indices)
    assert sample_greedy(logits).tolist() == greedy


# --- rows on their own -----------------------------------------------------------------------------

MIXED = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.4, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=2.0, top_k=50, top_p=0.9),
    SamplingParams(temperature=1.5, min_p=0.1),
    SamplingParams(top_k=3, top_p=0.5, min_p=0.5),
]


def mixed_rows(
    B: int, V: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, list[SamplingParams], list[int], list[int]]:
    """B rows of logits, parameters, seeds and indices, as `on_host` and `on_device` take them."""
    params = [MIXED[(b + seed) % len(MIXED)] for b in range(B)]
    seeds = [SEEDS[b % len(SEEDS)] + seed for b in range(B)]
    return random_logits(B, V, seed=seed).to(device, dtype), params, seeds, [b + seed for b in range(B)]


def test_the_logits_and_the_parameters_are_left_as_they_were():
    logits, params, seeds, indices = mixed_rows(6, 50)
    state = state_of(params, seeds, indices, logits.device)
    tensors = [logits, *state]
    before = [tensor.clone() for tensor in tensors]
    sample_any(logits, state)
    sample_greedy(logits)
    assert all(map(torch.equal, tensors, before))


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_on_a_gpu_a_rows_number_is_the_hosts():
    pairs = [(seed, index) for seed in SEEDS for index in INDICES] + [(s, s % 997) for s in range(5000)]
    assert_numbers_are_the_hosts(*zip(*pairs, strict=True), "cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("B", [1, 6, 24, 64])
@pytest.mark.parametrize("V", [10, 1000, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_on_a_gpu_tokens_are_the_hosts(B: int, V: int, dtype: torch.dtype):
    for seed in range(5):
        rows = mixed_rows(B, V, "cuda", dtype, seed)
        rows[0][B // 2, V // 2] = [math.nan, math.inf, -math.inf, 0.0, 0.0][seed]
        assert on_device(*rows) == on_device(*rows, with_all_filters=True) == on_host(*rows)


def test_in_float64_a_search_draws_what_a_sort_does():
    params = SamplingParams(6, temperature=1.0, top_p=0.9, top_k=40, seed=1, stop_on_eos=False)
    made = [
        make_engine(options=replace(LADDER["06"].options, sampler=sampler), dtype=torch.float64).generate(
            [(1, 2, 3)], params
        )
        for sampler in ("sorted", "searched")
    ]
    assert tokens_of(made[0]) == tokens_of(made[1])


# --- by the host alone -------------------------------------------------------------------------------


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


def test_huge_but_finite_logits_still_give_a_token():
    logits = torch.tensor([[-3e38, 3e38, 0.0]] * 2)
    assert sample(logits, [SamplingParams(), sampled(temperature=0.01)], [0.9, 0.9]) == [1, 1]
