"""The graders of lesson 05: wrong answers get their own words, and right ones are right in any clothes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import GREEDY, make_engine

from labkit.bench.cost_cards import count_calls
from labkit.ladder import LADDER
from labkit.learn import not_attempted
from labkit.learn.lesson_05.exercises import APPEND_TOKENS, RECORDS_CREATED, Interrupted, WriteFailed

REPLACED, MUTABLE = LADDER["04"].options, LADDER["05"].options


# --- append_tokens: wrong ------------------------------------------------------------------------------


def slots_of(lengths, blocks):
    """The slots that the tokens go to."""
    return [int(lengths[b]) + blocks[:i].count(b) for i, b in enumerate(blocks)]


def count(lengths, blocks):
    for b in blocks:
        lengths[b] += 1


def slots_by(slot_of):
    """The right answer, but for the slots that it writes to."""

    def append_tokens(lengths, blocks, write):
        write(slot_of(lengths, blocks))
        count(lengths, blocks)

    return append_tokens


def counting_by(count_up):
    """The right answer, but for how it counts."""

    def append_tokens(lengths, blocks, write):
        write(slots_of(lengths, blocks))
        count_up(lengths, blocks)

    return append_tokens


def writes_one_by_one(lengths, blocks, write):
    for b in blocks:
        write([int(lengths[b])])
        lengths[b] += 1


def writes_bare_numbers(lengths, blocks, write):
    for b in blocks:
        write(int(lengths[b]))
        lengths[b] += 1


def counts_before_it_reads(lengths, blocks, write):
    count(lengths, blocks)
    write(slots_of(lengths, blocks))


def rebinds_the_array(lengths, blocks):
    lengths = lengths + np.bincount(blocks, minlength=len(lengths))


def counts_a_copy(lengths, blocks):
    chosen = lengths[blocks]
    chosen += 1


def adds_once_for_each_name(lengths, blocks):
    lengths[blocks] += 1


def counts_the_first_only(lengths, blocks):
    for b in blocks:
        lengths[b] += 1
        return


def counts_every_block(lengths, blocks):
    lengths += 1


def counts_and_empties_the_list(lengths, blocks):
    while blocks:
        lengths[blocks.pop()] += 1


def sorts_the_blocks(lengths, blocks, write):
    write(slots_of(lengths, blocks))
    blocks.sort()
    count(lengths, blocks)


def counts_while_it_collects(lengths, blocks, write):
    slots = []
    for b in blocks:
        slots.append(int(lengths[b]))
        lengths[b] += 1
    write(slots)


def counts_whatever_happens(lengths, blocks, write):
    try:
        write(slots_of(lengths, blocks))
    finally:
        count(lengths, blocks)


def swallows_the_error(lengths, blocks, write):
    try:
        write(slots_of(lengths, blocks))
    except Exception:
        return
    count(lengths, blocks)


def returns_the_error(lengths, blocks, write):
    try:
        write(slots_of(lengths, blocks))
    except Exception as error:
        return error
    count(lengths, blocks)


def tries_again(lengths, blocks, write):
    slots = slots_of(lengths, blocks)
    try:
        write(slots)
    except WriteFailed:
        write(slots)
    count(lengths, blocks)


def raises_another(lengths, blocks, write):
    try:
        write(slots_of(lengths, blocks))
    except WriteFailed as error:
        raise RuntimeError("append failed") from error
    count(lengths, blocks)


def undoes_only_exceptions(lengths, blocks, write):
    slots = slots_of(lengths, blocks)
    count(lengths, blocks)
    try:
        write(slots)
    except Exception:
        for b in blocks:
            lengths[b] -= 1
        raise


def skips_empty_blocks(lengths, blocks, write):
    filled = [b for b in blocks if lengths[b]]
    write(slots_of(lengths, filled))
    count(lengths, filled)


WRONG_APPENDS = [
    (writes_one_by_one, "of all tokens at once"),
    (writes_bare_numbers, "of all tokens at once"),
    (lambda lengths, blocks, write: count(lengths, blocks), "of all tokens at once"),
    (counts_before_it_reads, "before the token is counted"),
    (slots_by(lambda lengths, blocks: [slot + 1 for slot in slots_of(lengths, blocks)]), "next slot is its"),
    (slots_by(lambda lengths, blocks: [slot - 1 for slot in slots_of(lengths, blocks)]), "next slot is its"),
    (slots_by(lambda lengths, blocks: blocks), "a block's next slot is its length"),
    (slots_by(lambda lengths, blocks: lengths), "a block's next slot is its length"),
    (slots_by(lambda lengths, blocks: lengths[blocks]), "the second one behind the first"),
    (slots_by(lambda lengths, blocks: sorted(slots_of(lengths, blocks))), "the second one behind the first"),
    (
        slots_by(lambda lengths, blocks: [int(lengths[b]) + i for i, b in enumerate(blocks)]),
        "a block's next slot is its length",
    ),
    (counting_by(lambda lengths, blocks: None), "one token more for each time"),
    (counting_by(rebinds_the_array), "in the array that you were given"),
    (counting_by(counts_a_copy), "in the array that you were given"),
    (counting_by(counts_the_first_only), "one token more for each time"),
    (counting_by(counts_every_block), "one token more for each time"),
    (counting_by(adds_once_for_each_name), "named twice holds two tokens more"),
    (counting_by(counts_and_empties_the_list), "Leave the list of blocks"),
    (sorts_the_blocks, "Leave the list of blocks"),
    (counts_while_it_collects, "Count after the write"),
    (counts_whatever_happens, "nothing may be counted"),
    (swallows_the_error, "Let the error through"),
    (returns_the_error, "Let the error through"),
    (raises_another, "raised RuntimeError: append failed"),
    (tries_again, "Write once"),
    (undoes_only_exceptions, "Ctrl-C"),
    (skips_empty_blocks, "An empty block's first slot is 0"),
    (
        slots_by(lambda lengths, blocks: [min(slot, 57) for slot in slots_of(lengths, blocks)]),
        "count each token, in the array",
    ),
]


# --- append_tokens: right ------------------------------------------------------------------------------


def tells_the_slots_as(kind):
    def append_tokens(lengths, blocks, write):
        write(kind(slots_of(lengths, blocks)))
        np.add.at(lengths, blocks, 1)

    return append_tokens


def counts_in_the_else(lengths, blocks, write):
    try:
        write(slots_of(lengths, blocks))
    except BaseException:
        raise
    else:
        lengths += np.bincount(blocks, minlength=len(lengths))
    return lengths


def undoes_everything(lengths, blocks, write):
    before = lengths.copy()
    slots = []
    for b in blocks:
        slots.append(lengths[b].item())
        lengths[b] += 1
    try:
        write(slots)
    except BaseException:
        lengths[:] = before
        raise


def counts_to_the_last_slot(lengths, blocks, write):
    slots = slots_of(lengths, blocks)
    write(slots)
    for b, slot in zip(blocks, slots, strict=True):
        lengths[b] = slot + 1


RIGHT_APPENDS = [
    *map(tells_the_slots_as, (list, tuple, np.array, torch.tensor, iter)),
    counts_in_the_else,
    undoes_everything,
    counts_to_the_last_slot,
]


# --- records created: wrong ----------------------------------------------------------------------------


def one_for_each_token(block_info, num_layers, in_place, boundary, copy_on_write):
    return num_layers * (in_place + boundary + copy_on_write)


def one_layer_only(block_info, num_layers, in_place, boundary, copy_on_write):
    return in_place + 2 * boundary + 3 * copy_on_write if block_info == "replaced" else 0


def never_any_if_mutable(block_info, num_layers, in_place, boundary, copy_on_write):
    return num_layers * (in_place + 2 * boundary + 3 * copy_on_write) if block_info == "replaced" else 0


def made_ready(weight_boundary, weight_copy, mutable=(1, 1), layers=None):
    """The right answer, but for what a boundary and a copy count."""

    def records_created(block_info, num_layers, in_place, boundary, copy_on_write):
        times = layers or num_layers
        if block_info == "mutable":
            return times * (mutable[0] * boundary + mutable[1] * copy_on_write)
        return times * (in_place + weight_boundary * boundary + weight_copy * copy_on_write)

    return records_created


def the_names_exchanged(block_info, num_layers, in_place, boundary, copy_on_write):
    other = {"mutable": "replaced", "replaced": "mutable"}[block_info]
    return RECORDS_CREATED.solution(other, num_layers, in_place, boundary, copy_on_write)


def multiplies_what_it_should_add(block_info, num_layers, in_place, boundary, copy_on_write):
    made = num_layers * (boundary or 1) * (copy_on_write or 1) * bool(boundary + copy_on_write)
    if block_info == "mutable":
        return made
    return num_layers * (in_place + 2 * boundary + 3 * copy_on_write)


WRONG_COUNTS = [
    (one_layer_only, "in each layer"),
    (the_names_exchanged, "in each layer"),
    (one_for_each_token, "counts in place"),
    (never_any_if_mutable, "a record of its own"),
    (made_ready(2, 3, (2, 1)), "a record of its own"),
    (made_ready(1, 3), "says 0 tokens"),
    (made_ready(2, 3, (1, 0)), "Copy-on-write takes a new block"),
    (made_ready(2, 3, (1, 2)), "Copy-on-write takes a new block"),
    (made_ready(2, 3, layers=12), "Copy-on-write takes a new block"),
    (made_ready(2, 2), "replaced again"),
    (made_ready(2, 1), "replaced again"),
    (multiplies_what_it_should_add, "Add up what the requests"),
]


# --- records created: right ----------------------------------------------------------------------------


def in_steps(block_info, num_layers, in_place, boundary, copy_on_write):
    created = 0
    for _ in range(num_layers):
        created += boundary + copy_on_write
        if block_info == "replaced":
            created += copy_on_write + (in_place + boundary + copy_on_write)
    return created


def as_a_product(block_info, num_layers, in_place, boundary, copy_on_write):
    weights = {"replaced": (1, 2, 3), "mutable": (0, 1, 1)}[block_info]
    return num_layers * np.dot(weights, (in_place, boundary, copy_on_write))


def as_a_float(block_info, num_layers, in_place, boundary, copy_on_write):
    return float(in_steps(block_info, num_layers, in_place, boundary, copy_on_write))


def as_a_tensor(block_info, num_layers, in_place, boundary, copy_on_write):
    return torch.tensor(in_steps(block_info, num_layers, in_place, boundary, copy_on_write))


RIGHT = [
    *((APPEND_TOKENS, attempt) for attempt in RIGHT_APPENDS),
    *((RECORDS_CREATED, attempt) for attempt in (in_steps, as_a_product, as_a_float, as_a_tensor)),
]
WRONG = [
    *((APPEND_TOKENS, *wrong) for wrong in WRONG_APPENDS),
    *((RECORDS_CREATED, *wrong) for wrong in WRONG_COUNTS),
]


@pytest.mark.parametrize("exercise", [APPEND_TOKENS, RECORDS_CREATED], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@pytest.mark.parametrize(("exercise", "attempt", "words"), WRONG, ids=[a.__name__ for _, a, _ in WRONG])
def test_a_wrong_answer_is_told_what_it_breaks(exercise, attempt, words):
    assert words in exercise.grade(attempt)


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT, ids=[a.__name__ for _, a in RIGHT])
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert exercise.grade(attempt) == f"{exercise.name}: right, all {len(exercise.cases)} cases."


def test_a_verdict_tells_what_was_there_and_what_was_seen():
    assert APPEND_TOKENS.grade(counts_while_it_collects) == (
        "append_tokens: with lengths=[3, 9, 5], blocks=[0, 2], write_raises='WriteFailed', the lengths: "
        "[4, 9, 6], expected [3, 9, 5]. Nothing was written, so nothing may be counted. Count after the "
        "write. (4 of 10 cases passed)"
    )


def test_a_crash_in_an_attempt_is_told():
    assert "raised IndexError" in APPEND_TOKENS.grade(lambda lengths, blocks, write: lengths[99])


def test_the_interruption_of_the_exercise_is_no_exception():
    assert not issubclass(Interrupted, Exception) and issubclass(WriteFailed, Exception)


# --- the solution and the engine -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [REPLACED, MUTABLE], ids=["replaced", "mutable"])
def test_the_formula_counts_what_steps_of_an_engine_create(options):
    """Prompts of all lengths, one of them shared: steps of every mixture of paths."""
    engine = make_engine(options=options)
    for prompt in ((1, 2, 3), (1, 2, 3), (4, 5), tuple(range(6, 14))):
        engine.add_request(prompt, GREEDY)
    engine.step()  # the prefill
    layers = engine.kv_manager.num_layers
    readings = [engine.stats().append_paths]
    created = []
    for _ in range(6):
        created.append(count_calls(engine)[1])
        readings.append(engine.stats().append_paths)
    met = set()
    for (before, after), count in zip(pairwise(readings), created, strict=True):
        paths = {p: (after.get(p, 0) - before.get(p, 0)) // layers for p in ("in_place", "boundary")}
        paths["copy_on_write"] = (after.get("copy_on_write", 0) - before.get("copy_on_write", 0)) // layers
        met |= {path for path, number in paths.items() if number}
        assert RECORDS_CREATED.solution(options.block_info, layers, **paths) == count
    assert met == {"in_place", "boundary", "copy_on_write"}
