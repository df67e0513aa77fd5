"""The exercises of lesson 00: wrong answers get their own words, right ones are right in any clothes."""

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, named, refused

from labkit.learn import not_attempted
from labkit.learn.lesson_00.exercises import BLOCKS_TAKEN, LOCATE, blocks_taken, locate

EXERCISES = pytest.mark.parametrize("exercise", [LOCATE, BLOCKS_TAKEN], ids=lambda e: e.name)


@EXERCISES
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert is_right(exercise, exercise.solution)
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@EXERCISES
def test_each_case_has_its_own_hint(exercise):
    hints = {case.hint for case in exercise.cases}
    assert len(hints) == len(exercise.cases) and all(hints) and exercise.drawn_hint


# `p` is the position, `t` the table and `s` the block size.
WRONG_PLACES = {
    "forgets the table": (lambda p, t, s: (p // s, p % s), "slot 0 of the first block"),
    "gives the slot first": (lambda p, t, s: (p % s, t[p // s]), "the physical block, then the slot"),
    "gives the block alone": (lambda p, t, s: t[p // s], "where a list or a tuple was expected (7, 0)"),
    "numbers the pool's slots": (lambda p, t, s: t[p // s] * s + p % s, "Return two numbers"),
    "gives text": (lambda p, t, s: f"{t[p // s]}, {p % s}", "Return two numbers"),
    "adds the logical block": (lambda p, t, s: (t[p // s], p % s, p // s), "Return two numbers"),
    "stays in the first block": (lambda p, t, s: (t[0], p), "second logical block"),
    "gives the position for the slot": (lambda p, t, s: (t[p // s], p), "second logical block"),
    "assumes blocks of 4": (lambda p, t, s: (t[p // 4 % len(t)], p % 4), "not always 4"),
    "rounds up": (lambda p, t, s: (t[-(-p // s)], p % s), "the last of them is in slot 3"),
    "rounds to the nearest": (lambda p, t, s: (t[round(p / s)], p % s), "the last of them is in slot 3"),
    "counts positions from 1": (lambda p, t, s: (t[(p - 1) // s], (p - 1) % s), "slot 0 of the first block"),
    "divides by the number of blocks": (
        lambda p, t, s: (t[p // len(t)], p % len(t)),
        "the last of them is in slot 3",
    ),
    "takes the remainder for the entry": (lambda p, t, s: (t[p % s % len(t)], p % s), "second logical block"),
    "swaps quotient and remainder": (lambda p, t, s: (t[p % len(t)], p // s), "is in slot 3"),
    "is off by one block": (lambda p, t, s: (t[p // s - 1], p % s), "slot 0 of the first block"),
    "sorts the table": (lambda p, t, s: (sorted(t)[p // s], p % s), "slot 0 of the first block"),
    "counts back from the last block": (lambda p, t, s: (t[-1 - p // s], p % s), "slot 0 of the first"),
    "gives floats for the entry": (lambda p, t, s: (t[p / s], p % s), "raised TypeError"),
    "masks, as if a size were a power of 2": (
        lambda p, t, s: (t[p // s], p & (s - 1)),
        "need not be a power of 2",
    ),
    "knows the cases by heart": (
        lambda p, t, s: {0: (7, 0), 3: (7, 3), 4: (2, 0), 10: (5, 2), 70: (1, 6), 7: (1, 1)}[p],
        "raised KeyError",
    ),
    "knows the last two blocks": (
        lambda p, t, s: (t[0] if p < s else t[1] if p < 2 * s else t[2], p % s),
        "(all 6 cases passed, but not a random one)",
    ),
}


# `n` is the number of tokens, `shared` whether the last block is, `s` the block size.
WRONG_COUNTS = {
    "always takes one": (lambda n, shared, s: 1, "goes in place"),
    "never takes one": (lambda n, shared, s: 0, "no block to write to"),
    "forgets the empty sequence": (lambda n, shared, s: int(n > 0 and n % s == 0), "no block to write to"),
    "knows only the empty sequence": (lambda n, shared, s: int(n == 0 or shared), "crosses a boundary"),
    "forgets copy-on-write": (lambda n, shared, s: int(n % s == 0), "takes a copy of your own"),
    "copies full blocks too": (lambda n, shared, s: int(n % s == 0) + shared, "costs nothing"),
    "lets sharers wait for a boundary": (lambda n, shared, s: int(n % s == 0 and not shared), "of your own"),
    "gives whether a block is shared": (lambda n, shared, s: int(shared), "no block to write to"),
    "takes one where there is room": (lambda n, shared, s: int(n % s != 0), "goes in place"),
    "assumes blocks of 4": (lambda n, shared, s: int(n % 4 == 0 or shared), "not always 4"),
    "takes one for even numbers": (lambda n, shared, s: int(n % 2 == 0 or shared), "2 of 4 tokens"),
    "takes one for even numbers of whole blocks": (
        lambda n, shared, s: int(n % (2 * s) == 0 or shared),
        "Neither is it always even",
    ),
    "fills one slot too few": (lambda n, shared, s: int((n + 1) % s == 0 or n == 0 or shared), "a boundary"),
    "takes the token after the next": (lambda n, shared, s: int(n % s == 1 or shared), "goes in place"),
    "masks, as if a size were a power of 2": (
        lambda n, shared, s: int(n & (s - 1) == 0 or shared),
        "five blocks of 3",
    ),
    "counts all blocks": (lambda n, shared, s: -(-(n + 1) // s), "goes in place"),
    "divides": (lambda n, shared, s: n / s, "goes in place"),
    "answers in words": (lambda n, shared, s: "one" if n % s == 0 or shared else "none", "goes in place"),
    "gives nothing back": (lambda n, shared, s: print(end=""), "A function without `return` gives None"),
    "compares with two blocks": (lambda n, shared, s: int(n in (0, s, 2 * s) or shared), "five blocks of 3"),
    "compares with five blocks": (
        lambda n, shared, s: int(n in range(0, 6 * s, s) or shared),
        "(all 8 cases passed, but not a random one)",
    ),
}


@refused((LOCATE, WRONG_PLACES), (BLOCKS_TAKEN, WRONG_COUNTS))
def test_a_plausible_wrong_answer_is_refused_in_words_of_its_own(exercise, attempt, words):
    assert words in exercise.grade(named(attempt))


@accepted(
    (
        LOCATE,
        {
            "a list": lambda p, t, s: [t[p // s], p % s],
            "divmod": lambda p, t, s: (t[divmod(p, s)[0]], divmod(p, s)[1]),
            "an array": lambda p, t, s: np.array(locate(p, t, s)),
            "a tensor": lambda p, t, s: torch.tensor(locate(p, t, s)),
            "numbers of an array": lambda p, t, s: (np.array(t)[p // s], np.int32(p % s)),
            "numbers of a tensor": lambda p, t, s: (torch.tensor(t)[p // s], p % s),
            "a table of all slots": lambda p, t, s: [(block, i) for block in t for i in range(s)][p],
            "a walk": lambda p, t, s: locate(p - s, t[1:], s) if p >= s else (t[0], p),
        },
    ),
    (
        BLOCKS_TAKEN,
        {
            "a truth": lambda n, shared, s: shared or n % s == 0,
            "a truth of NumPy": lambda n, shared, s: np.bool_(blocks_taken(n, shared, s)),
            "a number of NumPy": lambda n, shared, s: np.int64(blocks_taken(n, shared, s)),
            "a tensor": lambda n, shared, s: torch.tensor(blocks_taken(n, shared, s)),
            "a float": lambda n, shared, s: float(blocks_taken(n, shared, s)),
            "blocks after less blocks before": lambda n, shared, s: max(
                -(-(n + 1) // s) - -(-n // s), int(shared)
            ),
        },
    ),
)
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert is_right(exercise, named(attempt))


def test_a_table_that_is_changed_is_told():
    verdict = LOCATE.grade(lambda position, block_table, block_size: (block_table.pop(0), 0))
    assert "changed its argument block_table to [2, 5]. Leave what you are given as it is." in verdict
