"""Lesson 09: programs, the tokens that each reads, and sums in any order."""

import itertools
from dataclasses import replace

import pytest
import torch

from labkit import kernels, show
from labkit.kernels import triton_status
from labkit.learn.lesson_09 import programs


def test_programs_of_the_products():
    table = programs.product_table((1, 64))
    for (name, can_split), (N, K) in zip(
        [(name, "residual" in name) for name in table.index],
        [(2304, 768), (768, 768), (3072, 768), (768, 3072)],
        strict=True,
    ):
        tile = kernels.tiles.tile_of(64, N, K, can_split=can_split)
        tiles = -(-64 // tile.block_m) * -(-N // tile.block_n)
        expected = str(tiles) if tile.split_k == 1 else f"{tiles} x {tile.split_k}"
        assert table.loc[name, "B = 64"] == expected


def test_only_sums_added_on_arrival_differ():
    assert programs.sums_of_arrivals(1, 50) == (1, 1)
    assert programs.sums_of_arrivals(2, 50) == (1, 1)  # of two numbers, the sum has no order
    on_arrival, by_last = programs.sums_of_arrivals(6, 500)
    assert on_arrival > 1 == by_last


@pytest.mark.parametrize("by_turns", [True, False])
@pytest.mark.parametrize("splits", [1, 3, 16])
def test_every_token_is_in_one_piece(splits, by_turns):
    for context_len in (0, 1, 32, 33, 1000):
        pieces = programs.pieces_of(context_len, splits, by_turns)
        tokens = [t for first, count, _ in pieces for t in range(first, first + count)]
        assert tokens == list(range(context_len))
        assert all(program < splits for *_, program in pieces)


def test_turns_are_those_of_the_kernel():
    """`range(split * BLOCK_T, context_len, SPLITS * BLOCK_T)` in each program."""
    size = programs.TOKENS_AT_A_TIME
    for splits, context_len in itertools.product((1, 4, 7), (5, 200, 1000)):
        firsts = {(first, program) for first, _, program in programs.pieces_of(context_len, splits, True)}
        expected = {(f, p) for p in range(splits) for f in range(p * size, context_len, splits * size)}
        assert firsts == expected


def test_a_run_of_short_contexts_is_hardly_split():
    splits, at_work, share_of_one = programs.split_of_a_run(1, range(1, 65)).values()
    assert splits == kernels.num_splits(1, 12, 1024) > 1
    assert (at_work, share_of_one) == (1.5, 50)  # one piece of 32 tokens, then two


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
def test_attention_in_shares_is_its_twin(splits):
    case = programs.attention_case((0, 3, 40))
    twin, split = programs.attend(case), programs.attend(case, splits)
    torch.testing.assert_close(split.out, twin.out, atol=1e-5, rtol=1e-5)
    assert torch.equal(split.k_cache, twin.k_cache) and torch.equal(split.v_cache, twin.v_cache)
    assert not torch.equal(twin.k_cache, case["k_cache_layer"])  # something was stored, in a copy


def test_without_triton_the_twins_stand_for_the_kernels(monkeypatch):
    monkeypatch.setattr(programs, "triton_status", lambda: replace(triton_status(), mode="off"))
    case = programs.attention_case((3,))
    assert torch.equal(programs.attend(case, splits=2).out, programs.attend(case).out)


def test_programs_and_shares_are_drawn():
    figure = show.draw_programs((1, 64), 12, (16, 2), 132, 1056)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[12, 768], [192, 1536]]
    ways = {
        name: {"70 tokens": programs.pieces_of(70, 4, by_turns)}
        for name, by_turns in (("turns", True), ("stretches", False))
    }
    by_turns, contiguous = show.draw_shares(ways).axes
    assert "3 at work,\nat most 32 tokens" in [text.get_text() for text in by_turns.texts]
    assert "1 at work,\nat most 70 tokens" in [text.get_text() for text in contiguous.texts]
