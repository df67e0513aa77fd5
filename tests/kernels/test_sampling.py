"""Draws without a sort: the sorted sampler's tokens, by the kernels and by their plain twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused
from sampling_cases import EDGES, KINDS, NO_TOKENS, mixed_rows, rows_of
from sampling_helpers import random_logits
from triton_marks import needs_triton, on_cpu, twins

from labkit.kernels import checks, draw_plain, draw_triton, sampling
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.kernels.distribution import SamplingState, warp
from labkit.kernels.sampling import kept_by_top_k, kept_by_top_p, ordered

pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning"
)  # it wraps, as it should

each_draw = pytest.mark.parametrize("draw", twins(draw_plain, draw_triton, on_cpu))
NUM_SEEDS = 12  # of each edge

# --- the search ------------------------------------------------------------------------------------


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=30))
def test_keys_are_in_the_order_of_their_numbers(numbers: list[float]):
    keys = ordered(torch.tensor(numbers)).tolist()
    for a, key_a in zip(numbers, keys, strict=True):
        for b, key_b in zip(numbers, keys, strict=True):
            assert (key_a < key_b) == (a < b) and (key_a == key_b) == (a == b)


@pytest.mark.slow
@given(
    st.integers(0, 2**31),
    st.integers(1, 60),
    st.sampled_from([0.1, 3.0, 30.0]),
    st.floats(0.2, 5),
    st.integers(0, 70),
    st.floats(0.001, 1),
)
def test_the_tokens_kept_are_those_of_two_sorts(seed, V, scale, temperature, top_k, top_p):
    logits = random_logits(4, V, scale=scale, seed=seed)
    full = torch.full((4,), temperature, dtype=torch.float64)
    top_ks, top_ps = torch.full((4,), top_k), torch.full((4,), top_p, dtype=torch.float64)
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / full.float()[:, None]
    scores = scores.masked_fill(~kept_by_top_k(scores, top_ks), -torch.inf)
    kept = kept_by_top_p(scores, top_ps) & scores.isfinite()
    expected = warp(logits, SamplingState(full, top_ks, top_ps, None, None, None)) > 0
    assert torch.equal(kept & (scores > -80), expected & (scores > -80))  # below, a probability may be 0


# --- the same tokens -------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(0, 2**31), st.integers(1, 300), st.sampled_from([0.1, 1.0, 8.0]))
def test_a_batch_of_every_kind_has_the_tokens_of_two_sorts(seed: int, V: int, scale: float):
    rows = mixed_rows(20, V, seed=seed % 1000, scale=scale)
    assert rows.drawn(draw_plain) == rows.expected()


@needs_triton
@on_cpu
@pytest.mark.slow
@given(
    st.integers(0, 999),
    st.sampled_from([1, 5, 100, 4096, 4097]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
@settings(max_examples=6)
def test_the_kernels_draw_the_tokens_of_their_twin(seed: int, V: int, dtype: torch.dtype):
    rows = mixed_rows(5, V, dtype=dtype, seed=seed)
    assert rows.drawn(draw_triton) == rows.drawn(draw_plain)


@pytest.mark.slow
@each_draw
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_of_several_pieces_and_a_part(draw, kind):
    rows = mixed_rows(3, 2 * sampling.LOGITS_PER_CHUNK + 77, dtype=torch.float16)
    rows = rows_of(rows.logits, [KINDS[kind]] * 3, [1, 2, 3])
    assert rows.drawn(draw) == rows.expected()


@each_draw
def test_without_filters_nothing_is_searched_for(draw, monkeypatch):
    rows = mixed_rows(4, 100)
    plain = rows_of(rows.logits, [KINDS["temperature"], KINDS["greedy"]] * 2, [1, 2, 3, 4])
    monkeypatch.setattr(sampling, "crossing", None)
    assert plain.drawn(draw, is_filtered=False) == plain.expected()


@pytest.mark.slow
@each_draw
@pytest.mark.parametrize("edge", EDGES)
def test_at_the_edges_the_tokens_are_those_of_two_sorts(draw, edge):
    logits, params = EDGES[edge]
    num_seeds = NUM_SEEDS if draw is draw_plain else 2
    rows = rows_of(torch.tensor([logits] * num_seeds), [params] * num_seeds, list(range(num_seeds)))
    assert rows.drawn(draw) == rows.expected()


@pytest.mark.slow
@each_draw
@pytest.mark.parametrize("broken", NO_TOKENS)
def test_a_row_without_finite_logits_gets_no_token_and_changes_no_other(draw, broken):
    params = [KINDS["all"], KINDS["top-p"], KINDS["temperature"]]
    logits = random_logits(3, 3)
    whole = rows_of(logits, params, [1, 2, 3]).drawn(draw)
    logits[1] = torch.tensor(NO_TOKENS[broken])
    assert rows_of(logits, params, [1, 2, 3]).drawn(draw) == [whole[0], NO_TOKEN, whole[2]]


# --- what is refused -------------------------------------------------------------------------------


@each_draw
def test_arguments_that_do_not_fit_are_refused_before_anything_changes(draw):
    rows = mixed_rows(3, 20)
    token_ids, last = torch.zeros(3, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
    arguments = {"logits": rows.logits, "token_ids": token_ids, "slot_mapping": rows.slot_mapping}
    arguments |= {"last_token_ids": last, "state": rows.state}
    assert_each_wrong_tensor_is_refused(
        lambda **parts: draw(*parts.values(), True), arguments, ("logits width", "logits dtype")
    )


def test_with_debug_on_a_slot_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(checks, "DEBUG", True)
    rows = mixed_rows(2, 20)
    with pytest.raises(ValueError, match="slot_mapping has values from 0 to 2, outside of 0 to 1"):
        draw_plain(
            rows.logits,
            torch.zeros(2, dtype=torch.int64),
            rows.slot_mapping,
            torch.zeros(2, dtype=torch.int64),
            rows.state.at(slice(2)),
            True,
        )
