"""The graders of lesson 04: wrong answers get their own words, and right ones are right in any clothes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.kvcache import IdentityPosWrite
from labkit.learn import lesson_04 as lesson
from labkit.learn import not_attempted
from labkit.learn.lesson_04 import DISPATCH, IS_IDENTITY

CPU = torch.device("cpu")

# --- which kernel: wrong -------------------------------------------------------------------------------


def is_rung_03(num_written, batch_size, positions):
    return "full_batch" if num_written == batch_size and len(set(positions)) == 1 else "generic"


def looks_at_positions_alone(num_written, batch_size, positions):
    return "full_batch" if len(set(positions)) == 1 else "identity_pos"


def takes_all_written_for_the_batch(num_written, batch_size, positions):
    if num_written != len(positions):
        return "generic"
    return "full_batch" if len(set(positions)) == 1 else "identity_pos"


def asks_for_equal_positions_first(num_written, batch_size, positions):
    if len(set(positions)) == 1:
        return "full_batch"
    return "identity_pos" if num_written == batch_size else "generic"


def has_no_full_batch(num_written, batch_size, positions):
    return "identity_pos" if num_written == batch_size else "generic"


def has_no_identity_pos(num_written, batch_size, positions):
    return "full_batch" if num_written == batch_size else "generic"


def wants_two_for_full_batch(num_written, batch_size, positions):
    if num_written < batch_size:
        return "generic"
    return "full_batch" if len(positions) > 1 and len(set(positions)) == 1 else "identity_pos"


def if_equal(are_equal):
    """The right answer, but for how it finds out whether the slots are equal."""

    def dispatch(num_written, batch_size, positions):
        if num_written < batch_size:
            return "generic"
        return "full_batch" if are_equal(positions) else "identity_pos"

    return dispatch


WRONG_KERNELS = {
    "has no full-batch": (has_no_full_batch, "neither rows nor slots"),
    "is rung 03": (is_rung_03, "request b is still row b"),
    "has no identity-pos": (has_no_identity_pos, "only the slots need a tensor"),
    "some are equal": (if_equal(lambda p: len(set(p)) < len(p)), "request b is still row b"),
    "looks at positions alone": (looks_at_positions_alone, "batch_idx must say which"),
    "takes all written for the batch": (takes_all_written_for_the_batch, "batch_idx must say which"),
    "asks for equal positions first": (asks_for_equal_positions_first, "do not help a part"),
    "the first two": (if_equal(lambda p: len(p) < 2 or p[0] == p[1]), "not the first two"),
    "most of them": (if_equal(lambda p: p.count(p[0]) > len(p) / 2), "compare all positions"),
    "the first is the smallest": (if_equal(lambda p: p[0] == min(p)), "request b is still row b"),
    "the first and the last": (if_equal(lambda p: p[0] == p[-1]), "the one between them does not"),
    "sorted both ways": (if_equal(lambda p: p == p[::-1]), "the one between them does not"),
    "in blocks of 8": (if_equal(lambda p: len({x % 8 for x in p}) == 1), "Slots 16 apart"),
    "in blocks of 16": (if_equal(lambda p: len({x % 16 for x in p}) == 1), "Slots 16 apart"),
    "in blocks of 64": (if_equal(lambda p: len({x % 64 for x in p}) == 1), "Are all positions equal?"),
    "wants two": (wants_two_for_full_batch, "A batch of one is whole"),
    "0 is no slot": (if_equal(lambda p: all(p) and len(set(p)) == 1), "Slot 0 is a slot"),
    "the mean is the first": (if_equal(lambda p: sum(p) == len(p) * p[0]), "Are all positions equal?"),
    "the first is the greatest": (if_equal(lambda p: p[0] == max(p)), "Are all positions equal?"),
    "the next one, modulo 32": (if_equal(lambda p: len({x % 32 for x in p}) == 1), "Are all positions"),
    "says it in other words": (lambda num_written, batch_size, positions: "full batch", "expected 'full_b"),
    "gives the number": (lambda num_written, batch_size, positions: num_written, "gave 4, expected"),
    "prints the answer": (lambda num_written, batch_size, positions: None, "without `return`"),
}


# --- which kernel: right -------------------------------------------------------------------------------


def in_a_match(num_written, batch_size, positions):
    match num_written == batch_size, min(positions) == max(positions):
        case False, _:
            return "generic"
        case True, same:
            return ("identity_pos", "full_batch")[same]


def in_torch(num_written, batch_size, positions):
    pos = torch.tensor(positions)
    if len(pos) != batch_size:
        return "generic"
    return "full_batch" if (pos == pos[0]).all() else "identity_pos"


def as_a_string_of_numpy(num_written, batch_size, positions):
    return np.array(["generic", "identity_pos", "full_batch"])[
        (num_written == batch_size) * (1 + (np.ptp(positions) == 0))
    ]


RIGHT_KERNELS = [
    in_a_match,
    in_torch,
    as_a_string_of_numpy,
    if_equal(lambda p: all(x == p[0] for x in p)),
    if_equal(lambda p: p.count(p[0]) == len(p)),
    if_equal(lambda p: p == [p[-1]] * len(p)),
]


# --- the identity: wrong -------------------------------------------------------------------------------

WRONG_IDENTITIES = {
    "always": (lambda batch_idx, batch_size: True, "Request 2 is missing"),
    "never": (lambda batch_idx, batch_size: False, "one True for the whole batch"),
    "a range is no list": (
        lambda batch_idx, batch_size: batch_idx == range(batch_size),
        "Row b is request b",
    ),
    "an answer for each row": (
        lambda batch_idx, batch_size: [b == i for i, b in enumerate(batch_idx)],
        "one True for the whole batch",
    ),
    "an array of answers": (
        lambda batch_idx, batch_size: np.array(batch_idx) == np.arange(batch_size),
        "one True for the whole batch",
    ),
    "as far as it goes": (
        lambda batch_idx, batch_size: all(b == i for i, b in enumerate(batch_idx)),
        "serves all four",
    ),
    "the shorter of both": (
        lambda batch_idx, batch_size: all(b == i for b, i in zip(batch_idx, range(batch_size), strict=False)),
        "serves all four",
    ),
    "is rising": (lambda batch_idx, batch_size: batch_idx == sorted(batch_idx), "is missing"),
    "has no doubles": (lambda batch_idx, batch_size: len(set(batch_idx)) == len(batch_idx), "is missing"),
    "counts": (lambda batch_idx, batch_size: len(batch_idx) == batch_size, "the other's keys and values"),
    "sorts": (
        lambda batch_idx, batch_size: sorted(batch_idx) == list(range(batch_size)),
        "the other's keys and values",
    ),
    "takes a set": (
        lambda batch_idx, batch_size: set(batch_idx) == set(range(batch_size)),
        "the other's keys and values",
    ),
    "adds up": (
        lambda batch_idx, batch_size: sum(batch_idx) == sum(range(batch_size)),
        "the other's keys and values",
    ),
    "looks at the ends": (
        lambda batch_idx, batch_size: (
            batch_idx[0] == 0 and batch_idx[-1] == batch_size - 1 and len(batch_idx) == batch_size
        ),
        "named twice",
    ),
    "rising and enough": (
        lambda batch_idx, batch_size: len(batch_idx) == batch_size and batch_idx == sorted(batch_idx),
        "named twice",
    ),
    "rising by one": (
        lambda batch_idx, batch_size: (
            len(batch_idx) == batch_size and all(b - a == 1 for a, b in pairwise(batch_idx))
        ),
        "the first must be 0",
    ),
    "begins with it": (
        lambda batch_idx, batch_size: batch_idx[:batch_size] == list(range(batch_size)),
        "there is a fifth entry",
    ),
    "wants two": (
        lambda batch_idx, batch_size: batch_size > 1 and batch_idx == list(range(batch_size)),
        "A batch of one",
    ),
    "counts from behind, too": (
        lambda batch_idx, batch_size: (
            len(batch_idx) == batch_size and all(b % batch_size == i for i, b in enumerate(batch_idx))
        ),
        "entry b must be b",
    ),
    "ends with it": (
        lambda batch_idx, batch_size: batch_idx[-batch_size:] == list(range(batch_size)),
        "There must be an entry for each request",
    ),
    "whatever the sign": (
        lambda batch_idx, batch_size: [abs(b) for b in batch_idx] == list(range(batch_size)),
        "entry b must be b",
    ),
    "sorts in place": (
        lambda batch_idx, batch_size: batch_idx.sort() or batch_idx == list(range(batch_size)),
        "changed its argument batch_idx",
    ),
}


# --- the identity: right -------------------------------------------------------------------------------


def in_a_loop(batch_idx, batch_size):
    if len(batch_idx) != batch_size:
        return False
    wrong = 0
    for b in range(batch_size):
        if batch_idx[b] != b:
            wrong += 1
    return not wrong


def as_one_and_zero(batch_idx, batch_size):
    return int(tuple(batch_idx) == tuple(range(batch_size)))


def in_numpy(batch_idx, batch_size):
    return np.bool_(np.array_equal(batch_idx, np.arange(batch_size)))


def as_a_tensor(batch_idx, batch_size):
    rows = torch.tensor(batch_idx)
    return (rows == torch.arange(batch_size)).all() if len(rows) == batch_size else torch.tensor(False)


RIGHT = [
    *((DISPATCH, attempt) for attempt in RIGHT_KERNELS),
    *((IS_IDENTITY, attempt) for attempt in (in_a_loop, as_one_and_zero, in_numpy, as_a_tensor)),
]
WRONG = [
    *((DISPATCH, *wrong) for wrong in WRONG_KERNELS.values()),
    *((IS_IDENTITY, *wrong) for wrong in WRONG_IDENTITIES.values()),
]


@pytest.mark.parametrize("exercise", [DISPATCH, IS_IDENTITY], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@pytest.mark.parametrize(("exercise", "attempt", "words"), WRONG, ids=[*WRONG_KERNELS, *WRONG_IDENTITIES])
def test_a_wrong_answer_is_told_what_it_breaks(exercise, attempt, words):
    assert words in exercise.grade(attempt)


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT, ids=[a.__name__ for _, a in RIGHT])
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert exercise.grade(attempt) == f"{exercise.name}: right, all {len(exercise.cases)} cases."


# --- the solutions and the package ---------------------------------------------------------------------


@given(st.data())
def test_dispatch_is_what_the_package_does(data):
    batch_size = data.draw(st.integers(1, lesson.BATCH))
    written = sorted(data.draw(st.sets(st.integers(0, batch_size - 1), min_size=1)))
    pos = data.draw(st.lists(st.integers(0, 2), min_size=len(written), max_size=len(written)))
    cache, new = torch.zeros(2, lesson.BATCH, 1, 4, 2), torch.ones(2, batch_size, 1, 2)
    taken = IdentityPosWrite(CPU).write(*cache, *new, written, written, pos)
    assert taken == lesson.dispatch(len(written), batch_size, pos)


@given(st.integers(1, 6), st.sets(st.integers(0, 5), min_size=1))
def test_rising_indices_are_the_identity_exactly_if_there_are_enough(batch_size, indices):
    rising = sorted(i for i in indices if i < batch_size)
    assert lesson.is_identity(rising, batch_size) == (len(rising) == batch_size)
