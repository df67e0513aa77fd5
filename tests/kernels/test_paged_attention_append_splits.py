"""Attention that stores as it goes, split among programs: how many, over which tokens, with one workspace."""

import numpy as np
import pytest
import torch
from attention_append_cases import MOST_SPLITS, NOBODY, assert_attends_and_stores, bits, make_case, split_in
from hypothesis import given
from hypothesis import strategies as st
from triton_marks import KERNEL_DEVICE, needs_interpreter, needs_triton

from labkit.kernels import (
    SplitWorkspace,
    num_splits,
    paged_attention_append_triton,
    split_attention,
    triton_status,
)
from labkit.kernels.grouped_attention import NARROW, group_programs

if triton_status().mode == "interpreter":
    from triton.runtime.interpreter import InterpreterBuilder

pytestmark = pytest.mark.slow


@needs_triton
@pytest.mark.parametrize("splits", [2, 5, MOST_SPLITS])
def test_in_any_number_of_programs_it_is_the_one_kernel(splits: int):
    """Also in more than there are pieces of tokens: then some have nothing but a share of 0. (Which of them
    counts the current token makes no difference, as long as it is one and not each: the sum is the same.)"""
    one, split = (make_case([200, 63, NOBODY], H=1, D=20, block_size=16) for _ in range(2))
    expected = paged_attention_append_triton(**one.arguments)
    out = assert_attends_and_stores(split_in(splits), split)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(bits(split.k_pool), bits(one.k_pool))


@needs_triton
def test_a_workspace_serves_one_call_after_the_other_whatever_their_size():
    """Made for a large batch, as an engine does it; what one call leaves is nothing to the next."""
    workspace = SplitWorkspace(6, 3, 8, torch.device(KERNEL_DEVICE))
    for splits, lens in [(5, [70, 140]), (2, [9]), (7, [130, NOBODY]), (3, [0])]:
        for _ in range(2):
            assert_attends_and_stores(split_in(splits, workspace), make_case(lens, H=3))


def test_every_piece_of_the_longest_row_has_a_program_while_there_are_enough():
    """Also the last, in which there may be a single token."""
    for tokens, splits in ((32, 1), (33, 2), (64, 2), (65, 3), (500, 16), (1024, 16)):
        assert num_splits(1, 12, tokens) == splits
    assert [num_splits(B, 12, 1024) for B in (5, 6, 8, 16, 44, 64)] == [16, 14, 11, 5, 2, 1]


def test_few_heads_of_keys_that_queries_share_are_read_by_wide_programs():
    half = torch.bfloat16
    assert [group_programs(B, 9, 3, half).num_warps for B in (1, 21, 22)] == [8, 8, 1]
    assert group_programs(1, 3, 3, half) == group_programs(1, 9, 3, torch.float32) == NARROW
    assert [num_splits(1, 3, tokens, num_warps=8) for tokens in (256, 257, 1024, 9000)] == [1, 2, 4, 16]
    assert [num_splits(B, 8, 1024, num_warps=8) for B in (1, 4, 5, 8)] == [4, 4, 3, 2]


@pytest.mark.parametrize(
    "row_bytes, at_once, else_", [(2, 32, 16), (128, 32, 16), (256, 16, 8), (512, 8, 4), (2**20, 2, 1)]
)
def test_of_wide_rows_fewer_tokens_are_read_at_a_time(row_bytes: int, at_once: int, else_: int):
    """128 bytes is a head of 64 in half precision."""
    most = split_attention.PROGRAMS_AT_ONCE
    assert split_attention.tokens_at_a_time(most, row_bytes) == at_once
    assert split_attention.tokens_at_a_time(most + 1, row_bytes) == else_


@needs_interpreter
def test_the_table_is_not_read_beside_its_rows(monkeypatch: pytest.MonkeyPatch):
    """Not after the last, which is that of the rows that pad: what is there would not be used, but it may be
    nobody's memory. Rows have one block here, and every piece of 32 tokens goes beyond it."""
    case = make_case([3, NOBODY], H=1, block_size=16)
    table = case.arguments["block_table"]
    beside = 64  # numbers on each side
    memory = torch.zeros(table.numel() + 2 * beside, dtype=torch.int32)
    case.arguments["block_table"] = memory[beside:-beside].view(table.shape).copy_(table)
    places, load = [], InterpreterBuilder.create_masked_load

    def spy(self, pointers, mask, *rest):
        places.extend((pointers.data[mask.data].astype(np.int64) - memory.data_ptr()).ravel().tolist())
        return load(self, pointers, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", spy)
    assert_attends_and_stores(split_in(3), case)
    read = {place // 4 for place in places if 0 <= place < 4 * len(memory)}
    assert read and beside <= min(read) and max(read) < len(memory) - beside


SIZES = st.tuples(st.integers(1, 500), st.integers(1, 32), st.integers(0, 5000))


@given(SIZES, st.integers(1, 500), st.integers(1, 5000))
def test_more_rows_are_split_less_and_more_tokens_more(sizes: tuple, rows: int, tokens: int):
    batch_size, num_heads, max_tokens = sizes
    splits = num_splits(*sizes)
    assert 1 <= splits <= min(MOST_SPLITS, max(1, max_tokens))
    assert num_splits(batch_size + rows, num_heads, max_tokens) <= splits
    assert num_splits(batch_size, num_heads + rows, max_tokens) <= splits
    assert num_splits(batch_size, num_heads, max_tokens + tokens) >= splits
