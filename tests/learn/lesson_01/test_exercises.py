"""The exercises of lesson 01: wrong answers get their own words, right ones are right in any clothes."""

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, named, refused
from helpers import make_manager

from labkit.learn import not_attempted
from labkit.learn.lesson_01 import exercises
from labkit.learn.lesson_01.exercises import BREAK_THE_ROW, MUST_BE_MADE_ANEW, signature_of


@pytest.mark.parametrize("exercise", [MUST_BE_MADE_ANEW, BREAK_THE_ROW], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert is_right(exercise, exercise.solution)
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- exercise 1 ----------------------------------------------------------------------------------------


def test_each_case_has_its_own_hint():
    assert len({case.hint for case in MUST_BE_MADE_ANEW.cases}) == len(MUST_BE_MADE_ANEW.cases)


def knows_no_none(signature, block_ids):
    number, last_id = signature
    return (number, last_id) != (len(block_ids), block_ids[-1])


def compares_items(signature, block_ids):
    number, last_id = signature or (None, None)
    return any(a is not b for a, b in zip((number, last_id), block_ids, strict=False))


def forgets_who_comes_after(signature, block_ids):
    if signature is None:
        return True
    if len(block_ids) == signature[0]:
        return block_ids[-1:] != [signature[1]]
    return len(block_ids) > signature[0]


# `g` is the signature, `ids` the list of blocks.
WRONG_VERDICTS = {
    "always": (lambda g, ids: True, "the row stands"),
    "never": (lambda g, ids: False, "lacks block 9"),
    "the other way round": (lambda g, ids: signature_of(ids) == g, "the row stands"),
    "compares the number": (lambda g, ids: g is None or g[0] != len(ids), "number of blocks alone"),
    "compares the last id": (lambda g, ids: g is None or g[1] != ids[-1], "half of the signature"),
    "wants both to differ": (
        lambda g, ids: g is None or (g[0] != len(ids) and g[1] != ids[-1]),
        "The number of blocks alone",
    ),
    "compares with the whole list": (lambda g, ids: list(g or ()) != ids, "the row stands"),
    "compares a tuple with a list": (lambda g, ids: g != [len(ids), ids[-1]], "the row stands"),
    "swaps the signature": (lambda g, ids: g != (ids[-1], len(ids)), "the row stands"),
    "asks for the same object": (lambda g, ids: g is not signature_of(ids), "the row stands"),
    "takes the first id": (lambda g, ids: g != ((len(ids), ids[0]) if ids else (0, -1)), "the row stands"),
    "takes the largest id": (lambda g, ids: g != (len(ids), max(ids, default=-1)), "only the last counts"),
    "looks for the id anywhere": (
        lambda g, ids: g is None or g[0] != len(ids) or (g[1] not in ids and ids != []),
        "no longer the last",
    ),
    "takes block 0 for none": (
        lambda g, ids: g is None or not g[1] or g != signature_of(ids),
        "a block like any other",
    ),
    "knows no None": (knows_no_none, "raised TypeError"),
    "trusts None": (lambda g, ids: g is not None and g != signature_of(ids), "Nothing in it can be used"),
    "forgets empty lists": (lambda g, ids: g is None or g != (len(ids), ids[-1]), "raised IndexError"),
    "an empty list needs none": (lambda g, ids: bool(ids) and g != signature_of(ids), "The list was emptied"),
    "an empty list has the signature of zeros": (
        lambda g, ids: g != ((len(ids), ids[-1]) if ids else (0, 0)),
        "its signature is (0, -1)",
    ),
    "an empty list is always new": (lambda g, ids: not ids or g != signature_of(ids), "row of zeros stands"),
    "only a larger last id": (
        lambda g, ids: g is None or g[0] != len(ids) or (ids != [] and ids[-1] > g[1]),
        "can be less than the old one's",
    ),
    "only one block more or less": (
        lambda g, ids: g is None or abs(len(ids) - g[0]) == 1 or g[1] != (ids or [-1])[-1],
        "(all 10 cases passed, but not a random one)",
    ),
    "only a longer list": (
        lambda g, ids: g is None or len(ids) > g[0] or (ids[-1] if ids else -1) != g[1],
        "fewer blocks",
    ),
    "only a longer list or another id in it": (forgets_who_comes_after, "fewer blocks"),
    "compares items in turn": (compares_items, "the row stands"),
    "gives the row": (lambda g, ids: ids, "gave [3, 7], expected False"),
    "answers in words": (lambda g, ids: "yes", "gave 'yes', expected False"),
    "gives nothing back": (lambda g, ids: None, "A function without `return` gives None"),
}


@refused((MUST_BE_MADE_ANEW, WRONG_VERDICTS))
def test_a_plausible_wrong_verdict_is_refused_in_words_of_its_own(exercise, attempt, words):
    assert words in exercise.grade(named(attempt))


@accepted(
    (
        MUST_BE_MADE_ANEW,
        {
            "one comparison": lambda g, ids: g != (len(ids), ids[-1] if ids else -1),
            "the last of a list with a -1 before it": lambda g, ids: g != (len(ids), [-1, *ids][-1]),
            "a slice": lambda g, ids: g is None or g[0] != len(ids) or (ids[-1:] or [-1]) != [g[1]],
            "a number": lambda g, ids: int(g != signature_of(ids)),
            "a truth of NumPy": lambda g, ids: np.bool_(g != signature_of(ids)),
            "a tensor": lambda g, ids: torch.tensor(g != signature_of(ids)),
        },
    )
)
def test_a_right_verdict_is_right_in_any_clothes(exercise, attempt):
    assert is_right(exercise, named(attempt))


def test_exercise_1_agrees_with_the_session():
    """The cases' verdicts are what `get_paged_block_table_row_cpu` does."""
    for case in MUST_BE_MADE_ANEW.cases:
        signature, now = case.arguments["signature"], case.arguments["block_ids"]
        if signature is None:
            continue
        before = [8] * (signature[0] - 1) + [signature[1]] * (signature[0] > 0)
        session = exercises.session_on(make_manager(num_layers=1, max_blocks_per_layer=10), before)
        row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
        row[-1] = -1  # what is made anew loses this
        session.block_ids_per_layer[0][:] = now
        row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
        assert (row[-1] != -1) == case.expected, case.hint


# --- exercise 2 ----------------------------------------------------------------------------------------

# `ids` is the list of blocks, `free` are those that nobody holds.
WRONG_MOVES = {
    "nothing": (lambda ids, free: [], "so is the list, [3, 7, 5]: the row is not stale"),
    "there and back": (lambda ids, free: [("append", free[0]), ("truncate", len(ids))], "row is not stale"),
    "the last, there and back": (
        lambda ids, free: [("replace_last", free[0]), ("replace_last", ids[-1])],
        "Some block before the last must be another one",
    ),
    "the first, there and back": (
        lambda ids, free: [("replace", 0, free[0]), ("replace", 0, ids[0])],
        "the row is not stale",
    ),
    "shrinks by one": (lambda ids, free: [("truncate", len(ids) - 1), ("append", ids[-1])], "is not stale"),
    "shrinks by two, and grows as it was": (
        lambda ids, free: [("truncate", len(ids) - 2), ("append", ids[-2]), ("append", ids[-1])],
        "the row is not stale",
    ),
    "appends": (lambda ids, free: [("append", free[0])], "from (3, 5) to (4, 0), so the row was made anew"),
    "replaces the last": (lambda ids, free: [("replace_last", free[0])], "from (3, 5) to (3, 0)"),
    "shrinks, and ends otherwise": (
        lambda ids, free: [("truncate", len(ids) - 2), ("append", free[0]), ("append", free[1])],
        "last id must both end as they began",
    ),
    "shrinks, and is short of one": (
        lambda ids, free: [("truncate", len(ids) - 2), ("append", ids[-1])],
        "from (3, 5) to (2, 5)",
    ),
    "shrinks in the wrong order": (
        lambda ids, free: [("truncate", len(ids) - 2), ("append", ids[-1]), ("append", free[0])],
        "from (3, 5) to (3, 0)",
    ),
    "cuts to one": (lambda ids, free: [("truncate", 1), ("append", free[0])], "from (3, 5) to (2, 0)"),
    "replaces the second": (lambda ids, free: [("replace", 1, free[0])], "from (2, 8) to (2, 0), so the row"),
    "replaces the one before the last, from the end": (
        lambda ids, free: [("replace", -2, free[0])],
        "no block at place -2",
    ),
    "turns a list of three around": (
        lambda ids, free: [("truncate", 0), *(("append", i) for i in (ids[1], ids[0], *ids[2:]))],
        "from (2, 8) to (2, 4)",
    ),
    "cuts to nothing": (lambda ids, free: [("truncate", 0)], "from (3, 5) to (0, -1)"),
    "takes what it has": (lambda ids, free: [("replace", 0, ids[1])], "block 7 is in [3, 7, 5] already"),
    "takes block 0, whoever has it": (lambda ids, free: [("replace", 0, 0)], "block 0 is in [2, 0, 1, 6]"),
    "counts from 1": (lambda ids, free: [("replace", len(ids), free[0])], "no block at place 3"),
    "swaps place and id": (lambda ids, free: [("replace", free[-1], 0)], "has no block at place 9"),
    "replaces nothing's last": (lambda ids, free: [("truncate", 0), ("replace_last", 1)], "Operation 2: []"),
    "takes a block of no pool": (lambda ids, free: [("append", 10)], "the pool has blocks 0 to 9"),
    "cuts to more": (lambda ids, free: [("truncate", 4)], "cannot be cut to 4 blocks"),
    "cuts by two": (lambda ids, free: [("truncate", -2)], "cannot be cut to -2 blocks"),
    "an unknown name": (lambda ids, free: [("swap", 0, 1)], "none of the operations append, replace_last"),
    "a number for a name": (lambda ids, free: [(0, free[0])], "none of the operations"),
    "an empty operation": (lambda ids, free: [()], "none of the operations"),
    "too few numbers": (lambda ids, free: [("replace", 0)], "'replace' takes 2 whole numbers"),
    "a name alone": (lambda ids, free: [["append"]], "'append' takes 1 whole number, but"),
    "text for a number": (lambda ids, free: [("append", "0")], "'append' takes 1 whole number, but"),
    "half a block": (lambda ids, free: [("replace", 0, free[0] + 0.5)], "'replace' takes 2 whole numbers"),
    "all free blocks": (lambda ids, free: [("replace", 0, free)], "'replace' takes 2 whole numbers"),
    "one bare operation": (lambda ids, free: ("replace", 0, free[0]), "a list of operations, such as"),
    "a bare one in a list": (lambda ids, free: ["replace", 0, free[0]], "list of operations, such as"),
    "the list itself": (lambda ids, free: [free[0], *ids[1:]], "0 is none of the operations"),
    "nothing given back": (lambda ids, free: None, "gave None. Return a list of operations"),
    "a generator": (lambda ids, free: (move for move in [("replace", 0, free[0])]), "Return a list"),
    "a crash": (lambda ids, free: 1 / 0, "raised ZeroDivisionError"),
    "changes the list": (lambda ids, free: ids.insert(0, free[0]), "changed its argument block_ids"),
    "uses the blocks up": (lambda ids, free: [("replace", 0, free.pop())], "changed its argument free_ids"),
    "knows the lists by heart": (
        lambda ids, free: [("replace", 0, {3: 0, 2: 9, 4: 0}[ids[0]])],
        "(all 3 cases passed, but not a random one)",
    ),
}


@refused((BREAK_THE_ROW, WRONG_MOVES))
def test_moves_that_leave_the_row_right_or_cannot_be_made_are_refused(exercise, attempt, words):
    assert words in exercise.grade(named(attempt))


@pytest.mark.slow
@accepted(
    (
        BREAK_THE_ROW,
        {
            "one operation": exercises.break_the_row,
            "the other way": exercises.break_the_row_by_shrinking,
            "a tuple": lambda ids, free: (("replace", 0, free[-1]),),
            "a list of lists": lambda ids, free: [["replace", 0, free[0]]],
            "NumPy's numbers": lambda ids, free: [("replace", np.int64(0), np.array(free)[0])],
            "numbers of a tensor": lambda ids, free: [("replace", 0, torch.tensor(free)[0])],
            "the one before the last": lambda ids, free: [("replace", len(ids) - 2, free[1])],
            "all but the last": lambda ids, free: [
                ("replace", i, free[i]) for i in range(min(len(ids) - 1, len(free)))
            ],
            "from nothing": lambda ids, free: [
                ("truncate", 0),
                ("append", free[0]),
                *(("append", i) for i in ids[1:]),
            ],
            "by way of another last": lambda ids, free: [
                ("replace_last", free[0]),
                ("replace", 0, ids[-1]),
                ("replace", 0, free[1]),
                ("replace_last", ids[-1]),
            ],
        },
    )
)
def test_any_moves_that_leave_a_stale_row_are_right(exercise, attempt):
    assert is_right(exercise, named(attempt))
