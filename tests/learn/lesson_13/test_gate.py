"""Lesson 13's gate: chunks as they are agreed pass, and wrong ones are refused by what they break."""

import re

import pytest
import torch
from gate_tests import gate_tests

from labkit import lab
from labkit.engine.packed_chunk import PackedChunk
from labkit.learn.lesson_13.chunks import (
    BeginsAtZero,
    BeginsOneEarly,
    InRows,
    OverBudget,
    pack_first,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("13")


class OnePromptPacked(InRows):
    def pack(self, prompts, num_computed, counts):
        return pack_first(prompts, num_computed, counts)


class NewestFirst(InRows):
    def share_out(self, num_left, max_tokens):
        return super().share_out(num_left[::-1], max_tokens)[::-1]


class AllTheRoom(InRows):
    def share_out(self, num_left, max_tokens):
        return [max_tokens, *[0] * (len(num_left) - 1)]


class FromTheStart(InRows):
    def pack(self, prompts, num_computed, counts):
        return super().pack(prompts, [0] * len(counts), counts)


class ForgetsContext(InRows):
    def __init__(self, prompts, num_computed, max_tokens):
        super().__init__(prompts, num_computed, max_tokens)
        self.context_lens = [0] * len(prompts)


class ChangesWhatItIsGiven(InRows):
    def pack(self, prompts, num_computed, counts):
        packed = super().pack(prompts, num_computed, counts)
        num_computed[0] += 1
        return packed


class BelowZero(InRows):
    def share_out(self, num_left, max_tokens):
        ends = [sum(num_left[:p]) for p in range(len(num_left))]
        return [min(left, max_tokens - end) for left, end in zip(num_left, ends, strict=True)]


def one_token_each(prompts, num_computed, max_tokens):
    cut = [ids[: done + 1] for ids, done in zip(prompts, num_computed, strict=True)]
    return PackedChunk(cut, num_computed, max_tokens)


WRONG = {
    OnePromptPacked: "each prompt gets its rows, first come, first served: with prompts of [5, 3] tokens",
    NewestFirst: "`share_out` gave [0, 3, 4]: the oldest prompt gets all that it has left",
    AllTheRoom: "with [5] tokens left, room for 16, `share_out` returned [16], and prompt 0 has 5",
    BelowZero: "`share_out` returned [5, 2, -1], expected a list of 3 whole numbers, none of them negative",
    FromTheStart: "order: with prompts of [5] tokens, of which [3] are computed, and room for 3, row 0 has",
    BeginsAtZero: "positions go on from chunk to chunk, each prompt's its own",
    BeginsOneEarly: "`pack` was asked for [5, 3]: make that many rows of each prompt",
    OverBudget: "no chunk is above its budget: with prompts of [5] tokens, of which [0] are computed",
    ForgetsContext: "a prompt's context is what was computed of it before",
    ChangesWhatItIsGiven: "it changed its argument num_computed to [1]",
    one_token_each: "A chunk leaves no room unused while a prompt has tokens left",
}


class TokenByToken(InRows):
    def share_out(self, num_left, max_tokens):
        counts = [0] * len(num_left)
        for _ in range(max_tokens):
            p = next((p for p, left in enumerate(num_left) if counts[p] < left), None)
            if p is not None:
                counts[p] += 1
        return torch.tensor(counts).tolist()


def as_a_function(prompts, num_computed, max_tokens):
    return PackedChunk(prompts, num_computed, max_tokens)


RIGHT = (TokenByToken, as_a_function)
PATTERNS = {part: re.escape(words) for part, words in WRONG.items()}
test_wrong_parts, test_right_parts = gate_tests("13", "batching", PATTERNS, RIGHT)


chunks_made = []


class LateBug(PackedChunk):
    """Right until it has made many chunks."""

    def __init__(self, prompts, num_computed, max_tokens):
        super().__init__(prompts, num_computed, max_tokens)
        chunks_made.append(self)
        if len(chunks_made) > 60:
            self.positions = [0] * len(self.positions)


def test_what_only_a_schedule_finds_is_told_with_its_moves(here):
    chunks_made.clear()
    text = here.check(batching=LateBug).text
    assert "positions go on from chunk to chunk" in text and "other moves and this" in text
