"""The graders of lesson 05: wrong answers get their own words, and right ones are right in any clothes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import GREEDY, make_engine

from labkit.bench.cost_cards import count_calls
from labkit.kvcache import MutableKVBlockInfo
from labkit.ladder import LADDER
from labkit.learn import not_attempted
from labkit.learn.lesson_05 import APPEND_BATCH, RECORDS_CREATED, Interrupted, WriteFailed

REPLACED, MUTABLE = LADDER["04"].options, LADDER["05"].options


# --- write and count: wrong ----------------------------------------------------------------------------


def count(infos):
    for info in infos:
        info.length += 1


def slots_by(slot_of):
    """The right answer, but for the slot that it writes to."""

    def append_batch(infos, write):
        write([slot_of(info) for info in infos])
        count(infos)

    return append_batch


def counting_by(count_one):
    """The right answer, but for how it counts one token."""

    def append_batch(infos, write):
        write([info.length for info in infos])
        for info in infos:
            count_one(info)

    return append_batch


def writes_one_by_one(infos, write):
    for info in infos:
        write([info.length])
        info.length += 1


def writes_bare_numbers(infos, write):
    for info in infos:
        write(info.length)
        info.length += 1


def never_writes(infos, write):
    count(infos)


def counts_before_it_reads(infos, write):
    count(infos)
    write([info.length for info in infos])


def forgets_to_count(infos, write):
    write([info.length for info in infos])


def counts_its_own_numbers(infos, write):
    lengths = [info.length for info in infos]
    write(lengths)
    for length in lengths:
        length += 1


def counts_the_first_only(infos, write):
    write([info.length for info in infos])
    infos[0].length += 1


def leaves_the_function_early(infos, write):
    write([info.length for info in infos])
    for info in infos:
        info.length += 1
        return


def replaces_the_records(infos, write):
    write([info.length for info in infos])
    for i, info in enumerate(infos):
        infos[i] = MutableKVBlockInfo(info.layer, info.block_index, info.start, info.length + 1)


def moves_the_start(info):
    info.length += 1
    info.start += 1


def moves_to_the_next_layer(info):
    info.length += 1
    info.layer += 1


def sorts_the_records(infos, write):
    write([info.length for info in infos])
    count(infos)
    infos.sort(key=lambda info: info.start)


def empties_the_list(infos, write):
    write([info.length for info in infos])
    while infos:
        infos.pop().length += 1


def counts_while_it_collects(infos, write):
    slots = []
    for info in infos:
        slots.append(info.length)
        info.length += 1
    write(slots)


def counts_whatever_happens(infos, write):
    try:
        write([info.length for info in infos])
    finally:
        count(infos)


def swallows_the_error(infos, write):
    try:
        write([info.length for info in infos])
    except Exception:
        return
    count(infos)


def returns_the_error(infos, write):
    try:
        write([info.length for info in infos])
    except Exception as error:
        return error
    count(infos)


def tries_again(infos, write):
    slots = [info.length for info in infos]
    try:
        write(slots)
    except WriteFailed:
        write(slots)
    count(infos)


def raises_another(infos, write):
    try:
        write([info.length for info in infos])
    except WriteFailed as error:
        raise RuntimeError("append failed") from error
    count(infos)


def undoes_only_exceptions(infos, write):
    slots = [info.length for info in infos]
    count(infos)
    try:
        write(slots)
    except Exception:
        for info in infos:
            info.length -= 1
        raise


def skips_empty_blocks(infos, write):
    filled = [info for info in infos if info.length]
    write([info.length for info in filled])
    count(filled)


WRONG_APPENDS = [
    (writes_one_by_one, "the whole batch at once"),
    (writes_bare_numbers, "the whole batch at once"),
    (never_writes, "the whole batch at once"),
    (counts_before_it_reads, "before the token is counted"),
    (slots_by(lambda info: info.length + 1), "before the token is counted"),
    (slots_by(lambda info: info.block_index), "a block's next slot is its length"),
    (slots_by(lambda info: info), "a block's next slot is its length"),
    (slots_by(lambda info: info.length - 1), "before the token is counted"),
    (forgets_to_count, "one token more"),
    (counts_its_own_numbers, "one token more"),
    (counts_the_first_only, "one token more"),
    (leaves_the_function_early, "one token more"),
    (counting_by(lambda info: setattr(info, "length", info.length + 2)), "one token more"),
    (replaces_the_records, "count in place"),
    (slots_by(lambda info: info.start + info.length), "`start` says where the block begins"),
    (slots_by(lambda info: (info.start + info.length) % 16), "count each block's token"),
    (counting_by(moves_the_start), "and neither the other fields"),
    (counting_by(moves_to_the_next_layer), "and neither the other fields"),
    (sorts_the_records, "nor the order"),
    (empties_the_list, "one token more"),
    (counts_while_it_collects, "Count after the write"),
    (counts_whatever_happens, "nothing may be counted"),
    (swallows_the_error, "Let the error through"),
    (returns_the_error, "Let the error through"),
    (raises_another, "raised RuntimeError: append failed"),
    (tries_again, "Write once"),
    (undoes_only_exceptions, "Ctrl-C"),
    (skips_empty_blocks, "An empty block's first slot is 0"),
    (slots_by(lambda info: min(info.length, 62)), "count each block's token"),
    (counting_by(lambda info: setattr(info, "length", info.length % 63 + 1)), "count each block's token"),
]


# --- write and count: right ----------------------------------------------------------------------------


def tells_the_slots_as(kind):
    def append_batch(infos, write):
        write(kind([info.length for info in infos]))
        count(infos)

    return append_batch


def counts_in_the_else(infos, write):
    slots = [info.length for info in infos]
    try:
        write(slots)
    except BaseException:
        raise
    else:
        for info, slot in zip(infos, slots, strict=True):
            info.length = slot + 1
    return infos


def undoes_everything(infos, write):
    slots = [info.length for info in infos]
    count(infos)
    try:
        write(slots)
    except BaseException:
        for info in infos:
            info.length -= 1
        raise


def counts_in_the_slots_of_a_tensor(infos, write):
    slots = torch.tensor([info.length for info in infos])
    write(slots)
    slots += 1  # what `write` was given was for its call
    for info, length in zip(infos, slots.tolist(), strict=True):
        info.length = length


RIGHT_APPENDS = [
    *map(tells_the_slots_as, (tuple, np.array, torch.tensor, iter)),
    counts_in_the_else,
    undoes_everything,
    counts_in_the_slots_of_a_tensor,
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
    *((APPEND_BATCH, attempt) for attempt in RIGHT_APPENDS),
    *((RECORDS_CREATED, attempt) for attempt in (in_steps, as_a_product, as_a_float, as_a_tensor)),
]
WRONG = [
    *((APPEND_BATCH, *wrong) for wrong in WRONG_APPENDS),
    *((RECORDS_CREATED, *wrong) for wrong in WRONG_COUNTS),
]


@pytest.mark.parametrize("exercise", [APPEND_BATCH, RECORDS_CREATED], ids=lambda e: e.name)
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
    assert APPEND_BATCH.grade(counts_while_it_collects) == (
        "append_batch: with starts=[0, 0], lengths=[3, 5], write_raises='WriteFailed', the lengths: [4, 6], "
        "expected [3, 5]. Nothing was written, so nothing may be counted. Count after the write. (5 of 10 "
        "cases passed)"
    )


def test_a_crash_in_an_attempt_is_told():
    assert "raised IndexError" in APPEND_BATCH.grade(lambda infos, write: infos[99])


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
