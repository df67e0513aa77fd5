"""The graders of lesson 04: wrong answers get their own words, and right ones are right in any clothes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.kernels import kv_append_plain
from labkit.learn import not_attempted
from labkit.learn.lesson_04.exercises import IS_IDENTITY, SLOT_MAPPING, is_identity, slot_mapping

# --- the slot mapping: wrong ---------------------------------------------------------------------------


def for_rows_that_are_written(batch_idx, block_idx, pos, batch_size, block_size):
    return [block * block_size + slot for block, slot in zip(block_idx, pos, strict=True)]


def written_first(batch_idx, block_idx, pos, batch_size, block_size):
    mapping = [block * block_size + slot for block, slot in zip(block_idx, pos, strict=True)]
    return mapping + [-1] * (batch_size - len(mapping))


def with_zeros(batch_idx, block_idx, pos, batch_size, block_size):
    mapping = [0] * batch_size
    for b, block, slot in zip(batch_idx, block_idx, pos, strict=True):
        mapping[b] = block * block_size + slot
    return mapping


def as_rows_of_all(batch_idx, block_idx, pos, batch_size, block_size):
    return [block_idx[b] * block_size + pos[b] if b in batch_idx else -1 for b in range(batch_size)]


def zero_is_none(batch_idx, block_idx, pos, batch_size, block_size):
    return [slot or -1 for slot in with_zeros(batch_idx, block_idx, pos, batch_size, block_size)]


def placed(where):
    """The right answer, but for where a block and a slot are in the pool."""

    def mapping(batch_idx, block_idx, pos, batch_size, block_size):
        made = [-1] * batch_size
        for b, block, slot in zip(batch_idx, block_idx, pos, strict=True):
            made[b] = where(block, slot, block_size)
        return made

    return mapping


def changes_its_list(batch_idx, block_idx, pos, batch_size, block_size):
    made = [-1] * batch_size
    while batch_idx:
        made[batch_idx.pop()] = block_idx.pop() * block_size + pos.pop()
    return made


WRONG_MAPPINGS = {
    "slot times block": (placed(lambda block, slot, size: slot * size + block), "fourth of its block"),
    "counted from 1": (placed(lambda block, slot, size: block * size + slot + 1), "fourth of its block"),
    "the slot alone": (placed(lambda block, slot, size: slot), "Blocks 0 and 1 come before"),
    "the block's first": (placed(lambda block, slot, size: block * size), "fourth of its block"),
    "a pair": (placed(lambda block, slot, size: (block, slot)), "Blocks 0 and 1 come before"),
    "blocks of 8": (placed(lambda block, slot, size: block * 8 + slot), "differs from one call"),
    "for rows that are written": (for_rows_that_are_written, "rows 1 and 3 are not written"),
    "written ones first": (written_first, "rows 1 and 3 are not written"),
    "with zeros": (with_zeros, "rows 1 and 3 are not written"),
    "as rows of all": (as_rows_of_all, "raised IndexError"),
    "0 is no slot": (zero_is_none, "Slot 0 of block 0 is slot 0 of the pool"),
    "changes its list": (changes_its_list, "changed its argument batch_idx"),
    "prints it": (lambda *args, **kwargs: print(end=""), "without `return`"),
}


# --- the slot mapping: right ---------------------------------------------------------------------------


def in_one_line(batch_idx, block_idx, pos, batch_size, block_size):
    slots = {b: k * block_size + t for b, k, t in zip(batch_idx, block_idx, pos, strict=True)}
    return [slots.get(b, -1) for b in range(batch_size)]


def in_numpy(batch_idx, block_idx, pos, batch_size, block_size):
    mapping = np.full(batch_size, -1)
    mapping[np.array(batch_idx, dtype=int)] = np.array(block_idx) * block_size + np.array(pos)
    return mapping


def in_torch(batch_idx, block_idx, pos, batch_size, block_size):
    mapping = torch.full((batch_size,), -1)
    mapping[torch.tensor(batch_idx, dtype=torch.long)] = torch.tensor(
        block_idx, dtype=torch.long
    ) * block_size + torch.tensor(pos, dtype=torch.long)
    return mapping


def as_a_tuple(**arguments):
    return tuple(in_one_line(**arguments))


RIGHT_MAPPINGS = [in_one_line, in_numpy, in_torch, as_a_tuple]


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


def as_an_array(batch_idx, batch_size):
    return np.bool_(np.array_equal(batch_idx, np.arange(batch_size)))


def as_a_tensor(batch_idx, batch_size):
    rows = torch.tensor(batch_idx)
    return (rows == torch.arange(batch_size)).all() if len(rows) == batch_size else torch.tensor(False)


RIGHT = [
    *((SLOT_MAPPING, attempt) for attempt in RIGHT_MAPPINGS),
    *((IS_IDENTITY, attempt) for attempt in (in_a_loop, as_one_and_zero, as_an_array, as_a_tensor)),
]
WRONG = [
    *((SLOT_MAPPING, *wrong) for wrong in WRONG_MAPPINGS.values()),
    *((IS_IDENTITY, *wrong) for wrong in WRONG_IDENTITIES.values()),
]


@pytest.mark.parametrize("exercise", [SLOT_MAPPING, IS_IDENTITY], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@pytest.mark.parametrize(("exercise", "attempt", "words"), WRONG, ids=[*WRONG_MAPPINGS, *WRONG_IDENTITIES])
def test_a_wrong_answer_is_told_what_it_breaks(exercise, attempt, words):
    assert words in exercise.grade(attempt)


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT, ids=[a.__name__ for _, a in RIGHT])
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert exercise.grade(attempt) == f"{exercise.name}: right, all {len(exercise.cases)} cases."


# --- the solutions and the package ---------------------------------------------------------------------


@given(st.data())
def test_a_slot_mapping_says_where_indexed_assignment_writes(data):
    batch_size, blocks, size = data.draw(st.integers(1, 4)), 6, 4
    written = sorted(data.draw(st.sets(st.integers(0, batch_size - 1), min_size=1)))
    block_idx = data.draw(st.permutations(range(blocks)))[: len(written)]
    pos = data.draw(st.lists(st.integers(0, size - 1), min_size=len(written), max_size=len(written)))
    k_cache, v_cache = torch.full((2, blocks, 1, size, 1), -1.0)
    rows = torch.arange(batch_size).view(batch_size, 1, 1).float()
    kv_append_plain(k_cache, v_cache, rows, rows, *map(torch.tensor, (written, block_idx, pos)))
    flat = k_cache.flatten().tolist()
    mapping = slot_mapping(written, block_idx, pos, batch_size, size)
    assert [flat[slot] if slot >= 0 else None for slot in mapping] == [
        b if b in written else None for b in range(batch_size)
    ]


@given(st.integers(1, 6), st.sets(st.integers(0, 5), min_size=1))
def test_rising_indices_are_the_identity_exactly_if_there_are_enough(batch_size, indices):
    rising = sorted(i for i in indices if i < batch_size)
    assert is_identity(rising, batch_size) == (len(rising) == batch_size)
