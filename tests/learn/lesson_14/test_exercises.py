"""The graders of lesson 14: wrong answers are refused in the contract's words, right ones are right."""

import random

import numpy as np
import pytest
import torch

from labkit.learn import not_attempted
from labkit.learn.lesson_14.exercises import TOKENS_COMPUTED, WHICH_GOES, draw_blocks, draw_some_texts


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [WHICH_GOES, TOKENS_COMPUTED], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- which block goes --------------------------------------------------------------------------------------


def goes(blocks, in_use, *wrong):
    """The solution with some things wrong."""
    held = set(in_use)
    parents = set() if "parents go" in wrong else {parent for _, parent, _ in blocks}
    if "held children do not count" in wrong:
        parents = {parent for name, parent, _ in blocks if name not in held}
    if "those in use go" in wrong:
        held = set()
    left = [block for block in blocks if block[0] not in parents and block[0] not in held]
    if "stops at one in use" in wrong:
        leaves = sorted((b for b in blocks if b[0] not in parents), key=lambda b: b[2])
        left = [] if leaves and leaves[0][0] in held else leaves[:1]
    if not left:
        return "" if "no None" in wrong else None
    if "first of the list" in wrong:
        return left[0][0]
    pick = max if "the latest" in wrong else min
    chosen = pick(left, key=(lambda b: b[0]) if "by name" in wrong else lambda b: b[2])
    return chosen if "the whole block" in wrong else chosen[0]


def wrongly(*what):
    return lambda blocks, in_use: goes(blocks, in_use, *what)


def eats_the_blocks(blocks, in_use):
    found = goes(blocks, in_use)
    blocks.clear()
    return found


WRONG_BLOCKS = {
    "parents go": (wrongly("parents go"), "which nobody would find without them"),
    "held children do not count": (
        wrongly("held children do not count"),
        "a is the parent of b, which a request holds",
    ),
    "those in use go": (wrongly("those in use go"), "A request holds a"),
    "stops at one in use": (wrongly("stops at one in use"), "A request holds a"),
    "no None": (wrongly("no None"), "None may go"),
    "first of the list": (wrongly("first of the list"), "It was used longest ago"),
    "the latest": (wrongly("the latest"), "It was used longest ago"),
    "by name": (wrongly("by name"), "It was used longest ago"),
    "the whole block": (wrongly("the whole block"), "It was used longest ago"),
    "eats the blocks": (eats_the_blocks, "changed its argument blocks"),
    "nothing": (lambda blocks, in_use: None, "A function without `return` gives None"),
    "raises": (lambda blocks, in_use: min(blocks, key=lambda b: b[9])[0], "raised IndexError"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_BLOCKS.values(), ids=WRONG_BLOCKS)
def test_a_wrong_block_is_refused_in_the_contract_s_words(attempt, words):
    verdict = WHICH_GOES.grade(attempt)
    assert words in verdict, verdict


def by_sorting(blocks, in_use):
    """Another way: the first in the order of last use that may go."""
    for name, _, _ in sorted(blocks, key=lambda block: block[2]):
        if name not in in_use and not any(parent == name for _, parent, _ in blocks):
            return name
    return None


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [wrongly(), by_sorting])
def test_a_right_block_is_right_in_any_form(attempt):
    assert WHICH_GOES.grade(attempt) == f"which_goes: right, all {len(WHICH_GOES.cases)} cases."


def test_random_blocks_tell_wrong_ones_apart():
    rng = random.Random(0)
    drawn = [draw_blocks(rng) for _ in range(100)]
    for wrong in ("parents go", "held children do not count", "those in use go", "stops at one in use"):
        assert sum(goes(**each) != goes(*each.values(), wrong) for each in drawn) >= 5, wrong
    assert sum(goes(**each) is None for each in drawn) >= 3


# --- what is computed --------------------------------------------------------------------------------------


def computed(texts, block_size, *wrong):
    """The solution with some things wrong."""
    cached, counts = set(), []
    for text in texts:
        found, last = 0, len(text) if "all of it is found" in wrong else len(text) - 1
        while found + block_size <= last:
            end = found + block_size
            begin = text[found:end] if "blocks without what is before" in wrong else text[:end]
            if tuple(begin) not in cached:
                if "goes on behind a gap" in wrong:
                    found = end
                    continue
                break
            found = end
        if "token by token" in wrong:
            same = [
                next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), len(other))
                for other in texts[: len(counts)]
            ]
            found = min([max(same, default=0), len(text) - 1])
        counts.append(found if "counts what is found" in wrong else len(text) - found)
        if "only the last text" in wrong:
            cached = set()
        ends = range(block_size, len(text) + 1, block_size)
        if "partial blocks are kept" in wrong:
            cached |= {tuple(text[:end]) for end in range(1, len(text) + 1)}
        elif "blocks without what is before" in wrong:
            cached |= {tuple(text[end - block_size : end]) for end in ends}
        elif "whole texts alone" in wrong:
            cached.add(tuple(text))
        else:
            cached |= {tuple(text[:end]) for end in ends}
    return sum(counts) if "a sum" in wrong else counts


def counting(*what):
    return lambda texts, block_size: computed(texts, block_size, *what)


WRONG_COUNTS = {
    "all of it is found": (counting("all of it is found"), "The last token is always computed"),
    "blocks without what is before": (
        counting("blocks without what is before"),
        "Found is the longest run of blocks",
    ),
    "goes on behind a gap": (counting("goes on behind a gap"), "gave"),
    "token by token": (counting("token by token"), "They part inside the second block"),
    "counts what is found": (counting("counts what is found"), "Nothing is cached yet"),
    "only the last text": (counting("only the last text"), "Texts before the last one count, too"),
    "whole texts alone": (counting("whole texts alone"), "Two full blocks are shared"),
    "a sum": (counting("a sum"), "Nothing is cached yet"),
    "lengths": (lambda texts, block_size: [len(text) for text in texts], "Two full blocks are shared"),
    "nothing": (lambda texts, block_size: None, "A function without `return` gives None"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_COUNTS.values(), ids=WRONG_COUNTS)
def test_a_wrong_count_is_refused_in_the_contract_s_words(attempt, words):
    verdict = TOKENS_COMPUTED.grade(attempt)
    assert words in verdict and "right, all" not in verdict, verdict


def by_pairs(texts, block_size):
    """Another way: with each text before, the full blocks that both begin with."""
    counts = []
    for number, text in enumerate(texts):
        found = 0
        for other in texts[:number]:
            same = 0
            while same < min(len(text) - 1, len(other)) and text[same] == other[same]:
                same += 1
            found = max(found, same // block_size * block_size)
        counts.append(len(text) - found)
    return counts


RIGHT_COUNTS = {
    "nothing wrong": counting(),
    "keeps what no lookup asks for": counting("partial blocks are kept"),
    "by pairs": by_pairs,
    "a tuple": lambda texts, block_size: tuple(computed(texts, block_size)),
    "an array": lambda texts, block_size: np.array(computed(texts, block_size)),
    "a tensor": lambda texts, block_size: torch.tensor(computed(texts, block_size)),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_COUNTS.values(), ids=RIGHT_COUNTS)
def test_a_right_count_is_right_in_any_form(attempt):
    right = f"tokens_computed: right, all {len(TOKENS_COMPUTED.cases)} cases."
    assert TOKENS_COMPUTED.grade(attempt) == right


def test_random_texts_tell_wrong_counts_apart():
    rng = random.Random(0)
    drawn = [draw_some_texts(rng) for _ in range(100)]
    for wrong in ("all of it is found", "blocks without what is before", "only the last text"):
        assert sum(computed(**each) != computed(*each.values(), wrong) for each in drawn) >= 5, wrong
