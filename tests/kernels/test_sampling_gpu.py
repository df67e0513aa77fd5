"""Draws without a sort on a GPU: the sorted sampler's tokens, but for numbers at a rounding's distance."""

import math

import pytest
import torch
from sampling_cases import EDGES, KINDS, mixed_rows, rows_of
from sampling_helpers import random_logits
from triton_marks import DTYPES, assert_host_does_not_wait, captured, needs_triton

from labkit.engine.sampling import sample_greedy
from labkit.kernels import SamplingState, draw_plain, draw_triton
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.kernels.distribution import warp

pytestmark = [pytest.mark.cuda, needs_triton]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_over_many_seeds_few_draws_differ_from_two_sorts(dtype, kind):
    """A number that falls within rounding of where one token ends and the next begins: 1 in 1,000 at most."""
    B, rounds, differing = 64, 10, 0
    for i in range(rounds):
        logits = mixed_rows(B, 50257, "cuda", dtype, seed=i).logits
        rows = rows_of(logits, [KINDS[kind]] * B, [B * i + b for b in range(B)])
        pairs = zip(rows.drawn(draw_triton), rows.expected(), strict=True)
        differing += sum(ours != theirs for ours, theirs in pairs)
    assert differing <= rounds * B / 1000


@pytest.mark.parametrize("V", [1, 10, 1000, 4096, 4097, 50257, 151936])
@pytest.mark.parametrize("B", [1, 6, 130])
def test_the_kernel_draws_its_twins_tokens_whatever_the_sizes(B, V):
    rows = mixed_rows(B, V, "cuda", torch.float16)
    assert sum(a != b for a, b in zip(rows.drawn(draw_triton), rows.drawn(draw_plain), strict=True)) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("edge", EDGES)
def test_at_the_edges_the_tokens_are_those_of_the_twin(edge, dtype):
    logits, params = EDGES[edge]
    rows = rows_of(torch.tensor([logits] * 200, device="cuda", dtype=dtype), [params] * 200, list(range(200)))
    assert rows.drawn(draw_triton) == rows.drawn(draw_plain)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_has_no_token_and_leaves_the_others_theirs(bad):
    rows = mixed_rows(8, 50257, "cuda", torch.float16)
    whole = rows.drawn(draw_triton)
    rows.logits[3, 40_000] = bad
    assert rows.drawn(draw_triton) == [*whole[:3], NO_TOKEN, *whole[4:]]


def test_a_row_has_the_same_token_in_any_batch_and_every_time():
    rows = mixed_rows(70, 50257, "cuda", torch.float16)
    together = rows.drawn(draw_triton)
    assert all(rows.drawn(draw_triton) == together for _ in range(10))
    assert [rows.row(b).drawn(draw_triton) for b in range(70)] == [[token] for token in together]


def test_a_captured_draw_gives_the_tokens_of_any_later_inputs():
    all_rows = [mixed_rows(6, 1000, "cuda", seed=seed) for seed in range(5)]
    logits, state = all_rows[0].logits.clone(), SamplingState(*(c.clone() for c in all_rows[0].state))
    slots, last = all_rows[0].slot_mapping, torch.zeros(12, dtype=torch.int64, device="cuda")
    token_ids = sample_greedy(logits)
    graph, _ = captured(lambda: draw_triton(logits, token_ids, slots, last, state, True))
    for rows in all_rows:
        logits.copy_(rows.logits)
        for buffer, column in zip(state, rows.state, strict=True):
            buffer.copy_(column)
        token_ids.copy_(sample_greedy(rows.logits))
        graph.replay()
        assert token_ids.tolist() == rows.drawn(draw_triton)


def test_the_host_does_not_wait():
    rows = mixed_rows(8, 1000, "cuda")
    token_ids, last = sample_greedy(rows.logits), torch.zeros(16, dtype=torch.int64, device="cuda")
    slots = rows.slot_mapping
    assert_host_does_not_wait(lambda: draw_triton(rows.logits, token_ids, slots, last, rows.state, True))


def test_tokens_drawn_pass_a_chi_square_test():
    n, V = 20_000, 10
    logits = random_logits(1, V, scale=1.0).cuda()
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.5, 6, 1.0), (2.0, 0, 0.7), (1.5, 8, 0.9)):
        rows = rows_of(logits.expand(n, V).contiguous(), [(temperature, top_k, top_p)] * n, [11] * n)
        counts = torch.bincount(torch.tensor(rows.drawn(draw_triton)), minlength=V)
        expected = n * warp(logits, rows.state.at(slice(1)))[0].cpu()
        possible = expected > 0
        assert counts[~possible].eq(0).all()
        assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 27.9
