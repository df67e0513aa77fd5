"""Softmax piece by piece beside PyTorch's own, over all tokens at once."""

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels.running_softmax import add_piece, merge_parts, put_together
from labkit.kernels.triton_runtime import tl, triton

pytestmark = needs_triton
T, D = 4, 8


@triton.jit
def _attend_kernel(
    query_ptr, keys_ptr, values_ptr, out_ptr, num_tokens, T: tl.constexpr, D: tl.constexpr, OWN: tl.constexpr
):
    """Largest score, total and values of num_tokens tokens, and with OWN of the one behind them."""
    t, d = tl.arange(0, T), tl.arange(0, D)
    query = tl.load(query_ptr + d)
    own_score = tl.sum(query * tl.load(keys_ptr + num_tokens * D + d), axis=0)
    own_value = tl.load(values_ptr + num_tokens * D + d)
    largest, total = tl.zeros([T], tl.float32) + own_score, tl.zeros([T], tl.float32)
    acc = tl.zeros([T, D], tl.float32)
    for start in range(0, num_tokens, T):
        live = start + t < num_tokens
        place = (start + t)[:, None] * D + d[None, :]
        keys = tl.load(keys_ptr + place, mask=live[:, None], other=0.0)
        values = tl.load(values_ptr + place, mask=live[:, None], other=0.0)
        largest, total, acc = add_piece(query, keys, values, live, largest, total, acc)
    all_largest, sum_total, sum_acc = put_together(
        largest, total, acc, own_score, own_value, (num_tokens >= 0) & OWN
    )
    tl.store(out_ptr, all_largest)
    tl.store(out_ptr + 1, sum_total)
    tl.store(out_ptr + 2 + d, sum_acc)


@triton.jit
def _merge_kernel(softmax_ptr, partial_out_ptr, out_ptr, num_parts, P: tl.constexpr, D: tl.constexpr):
    """Attention of the first num_parts of P parts."""
    p, d = tl.arange(0, P), tl.arange(0, D)
    tl.store(out_ptr + d, merge_parts(p, p < num_parts, partial_out_ptr, softmax_ptr, d, d < D, D))


def make_tokens(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A query [D], and keys and values [num_tokens, D] whose scores lie far apart."""
    torch.manual_seed(num_tokens)
    return torch.randn(D) * 4, torch.randn(num_tokens, D) * 4, torch.randn(num_tokens, D)


def attend(query, keys, values, has_own: bool = True) -> torch.Tensor:
    """What the kernel leaves: [2 + D]."""
    out = torch.full((2 + D,), torch.nan)
    _attend_kernel[(1,)](query, keys, values, out, len(keys) - 1, T=T, D=D, OWN=has_own)
    return out


@pytest.mark.parametrize("num_past", [0, 1, 3, 4, 5, 17])
def test_pieces_and_the_own_token_make_one_softmax(num_past: int):
    query, keys, values = make_tokens(num_past + 1)
    largest, total, *acc = attend(query, keys, values)
    scores = keys @ query
    torch.testing.assert_close(largest, scores.max())
    torch.testing.assert_close(total, (scores - scores.max()).exp().sum())
    torch.testing.assert_close(torch.stack(acc) / total, scores.softmax(0) @ values)


def test_a_program_without_the_own_token_begins_at_its_score_and_does_not_count_it():
    query, keys, values = make_tokens(6)
    largest, total, *acc = attend(query, keys, values, has_own=False)
    scores = keys @ query
    torch.testing.assert_close(largest, scores.max())
    torch.testing.assert_close(total, (scores[:5] - scores.max()).exp().sum())
    torch.testing.assert_close(torch.stack(acc) / total, scores[:5].softmax(0) @ values[:5])


@pytest.mark.parametrize("lengths", [[6], [1, 7], [5, 4, 1, 9]])
def test_parts_make_the_softmax_of_all_their_tokens(lengths: list[int]):
    """Behind the parts there is something else, which is not read."""
    query, keys, values = make_tokens(sum(lengths))
    softmax, partial_out, first = torch.full((8, 2), torch.nan), torch.full((8, D), torch.nan), 0
    for p, length in enumerate(lengths):
        part = attend(query, keys[first : first + length], values[first : first + length])
        softmax[p], partial_out[p] = part[:2], part[2:]
        first += length
    out = torch.empty(D)
    _merge_kernel[(1,)](softmax, partial_out, out, len(lengths), P=8, D=D)
    torch.testing.assert_close(out, (keys @ query).softmax(0) @ values)
