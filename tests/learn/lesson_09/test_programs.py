"""Lesson 09: programs, the tokens that each reads, and sums in any order."""

import itertools

import pytest

from labkit.learn.lesson_09 import records


@pytest.mark.parametrize("by_turns", [True, False])
@pytest.mark.parametrize("splits", [1, 3, 16])
def test_every_token_is_in_one_piece(splits, by_turns):
    for context_len in (0, 1, 32, 33, 1000):
        pieces = records.pieces_of(context_len, splits, by_turns)
        tokens = [t for first, count, _ in pieces for t in range(first, first + count)]
        assert tokens == list(range(context_len))
        assert all(program < splits for *_, program in pieces)


def test_turns_are_those_of_the_kernel():
    """`range(split * BLOCK_T, context_len, SPLITS * BLOCK_T)` in each program."""
    size = records.TOKENS_AT_A_TIME
    for splits, context_len in itertools.product((1, 4, 7), (5, 200, 1000)):
        firsts = {(first, program) for first, _, program in records.pieces_of(context_len, splits, True)}
        expected = {(f, p) for p in range(splits) for f in range(p * size, context_len, splits * size)}
        assert firsts == expected
