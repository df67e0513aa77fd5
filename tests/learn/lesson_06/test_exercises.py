"""The graders of lesson 06: wrong answers get their own words, and right ones are right in any clothes."""

from collections import deque
from itertools import cycle

import numpy as np
import pytest
from prefilled_engines import THIS, prefilled

from labkit import watch
from labkit.learn import not_attempted
from labkit.learn.lesson_06.copies import one_buffer, two_without_waiting
from labkit.learn.lesson_06.exercises import NEXT_PLACES, SEND_ALL

# --- two buffers: wrong --------------------------------------------------------------------------------


def fill(buffer, numbers):
    buffer[: len(numbers)] = numbers


def taking_turns(put):
    """The right answer, but for how it puts a message into a buffer."""

    def send_all(messages, buffers, copy):
        copied = [None, None]
        for i, numbers in enumerate(messages):
            if copied[i % 2]:
                copied[i % 2].wait()
            copied[i % 2] = put(numbers, buffers, i % 2, copy)

    return send_all


def sends_nothing(messages, buffers, copy):
    for i, numbers in enumerate(messages):
        fill(buffers[i % 2], numbers)


def copies_before_it_writes(messages, buffers, copy):
    for i, numbers in enumerate(messages):
        copy(buffers[i % 2], len(numbers)).wait()
        fill(buffers[i % 2], numbers)


def writes_after_it_asks(numbers, buffers, turn, copy):
    asked = copy(buffers[turn], len(numbers))
    fill(buffers[turn], numbers)
    return asked


def waits_for_every_copy(messages, buffers, copy):
    for i, numbers in enumerate(messages):
        fill(buffers[i % 2], numbers)
        copy(buffers[i % 2], len(numbers)).wait()


def one_buffer_that_waits(messages, buffers, copy):
    copied = None
    for numbers in messages:
        if copied:
            copied.wait()
        fill(buffers[0], numbers)
        copied = copy(buffers[0], len(numbers))


def waits_at_the_end(messages, buffers, copy):
    copied = []
    for i, numbers in enumerate(messages):
        if i >= 2:
            copied[i - 2].wait()
        fill(buffers[i % 2], numbers)
        copied.append(copy(buffers[i % 2], len(numbers)))
    for last in copied[-2:]:
        last.wait()


def waits_for_the_newest(messages, buffers, copy):
    last = None
    for i, numbers in enumerate(messages):
        if i >= 2:
            last.wait()
        fill(buffers[i % 2], numbers)
        last = copy(buffers[i % 2], len(numbers))


def waits_for_the_oldest_only(messages, buffers, copy):
    copied = []
    for i, numbers in enumerate(messages):
        if i >= 2:
            copied[0].wait()
        fill(buffers[i % 2], numbers)
        copied.append(copy(buffers[i % 2], len(numbers)))


def waits_for_the_first_two_only(messages, buffers, copy):
    copied = []
    for i, numbers in enumerate(messages):
        if 2 <= i < 4:
            copied[i - 2].wait()
        fill(buffers[i % 2], numbers)
        copied.append(copy(buffers[i % 2], len(numbers)))


def waits_after_it_writes(messages, buffers, copy):
    copied = [None, None]
    for i, numbers in enumerate(messages):
        fill(buffers[i % 2], numbers)
        if copied[i % 2]:
            copied[i % 2].wait()
        copied[i % 2] = copy(buffers[i % 2], len(numbers))


def waits_for_both_at_every_turn(messages, buffers, copy):
    copied = []
    for i, numbers in enumerate(messages):
        if i % 2 == 0:
            for each in copied[-2:]:
                each.wait()
        fill(buffers[i % 2], numbers)
        copied.append(copy(buffers[i % 2], len(numbers)))


def names_wait_and_does_not_call_it(messages, buffers, copy):
    copied = [None, None]
    for i, numbers in enumerate(messages):
        if copied[i % 2]:
            copied[i % 2].wait  # noqa: B018
        fill(buffers[i % 2], numbers)
        copied[i % 2] = copy(buffers[i % 2], len(numbers))


def eats_the_messages(messages, buffers, copy):
    copied, turn = [None, None], 0
    while messages:
        numbers = messages.pop(0)
        if copied[turn]:
            copied[turn].wait()
        fill(buffers[turn], numbers)
        copied[turn] = copy(buffers[turn], len(numbers))
        turn = 1 - turn


def leaves_out_the_last_odd_one(messages, buffers, copy):
    copied = [None, None]
    for first, second in zip(messages[::2], messages[1::2], strict=False):
        for turn, numbers in enumerate((first, second)):
            if copied[turn]:
                copied[turn].wait()
            fill(buffers[turn], numbers)
            copied[turn] = copy(buffers[turn], len(numbers))
    if len(messages) == 1:
        fill(buffers[0], messages[0])
        copy(buffers[0], len(messages[0]))


def puts_a_new_list(numbers, buffers, turn, copy):
    buffers[turn] = list(numbers)
    return copy(buffers[turn], len(numbers))


def shrinks_the_buffer(numbers, buffers, turn, copy):
    buffers[turn][:] = numbers
    return copy(buffers[turn], len(numbers))


def grows_the_buffer(numbers, buffers, turn, copy):
    buffers[turn][:0] = numbers
    return copy(buffers[turn], len(numbers))


WRONG_SENDS = [
    (sends_nothing, "then ask for a copy"),
    (copies_before_it_writes, "then ask for a copy"),
    (taking_turns(writes_after_it_asks), "must be in the buffer before that"),
    (one_buffer, "let the buffers take turns"),
    (one_buffer_that_waits, "nothing to wait for"),
    (waits_for_every_copy, "nothing to wait for"),
    (waits_at_the_end, "nobody has to wait at the end"),
    (two_without_waiting, "meets the first buffer again"),
    (names_wait_and_does_not_call_it, "meets the first buffer again"),
    (waits_after_it_writes, "meets the first buffer again"),
    (leaves_out_the_last_odd_one, "The third message"),
    (waits_for_the_newest, "not for the newest copy"),
    (waits_for_the_oldest_only, "Wait for the last copy of the buffer"),
    (waits_for_the_first_two_only, "Wait for the last copy of the buffer"),
    (waits_for_both_at_every_turn, "leave the last two under way"),
    (taking_turns(lambda n, b, t, copy: fill(b[t], n) or copy(b[t], len(b[t]))), "as many numbers as this"),
    (taking_turns(puts_a_new_list), "it put a new list in the place of a buffer"),
    (taking_turns(lambda n, b, t, copy: copy(n, len(n))), "use the buffers"),
    (taking_turns(lambda n, b, t, copy: copy(list(n), len(n))), "use the buffers"),
    (
        taking_turns(lambda n, b, t, copy: fill(b[t], n) or copy(b[t][: len(n)], len(n))),
        "a slice is a new list",
    ),
    (taking_turns(shrinks_the_buffer), "it made a buffer of 3 numbers one of 1"),
    (taking_turns(grows_the_buffer), "it made a buffer of 3 numbers one of 6"),
    (eats_the_messages, "it changed its argument messages to []"),
]


# --- two buffers: right --------------------------------------------------------------------------------


def keeps_all_copies(messages, buffers, copy):
    copied = []
    for i, numbers in enumerate(messages):
        if i >= 2:
            copied[i - 2].wait()
        for place, number in enumerate(numbers):
            buffers[i % 2][place] = number
        copied.append(copy(buffers[i % 2], len(numbers)))
    return copied


def in_a_queue(messages, buffers, copy):
    under_way = deque()
    for numbers, buffer in zip(messages, cycle(reversed(buffers)), strict=False):
        if len(under_way) == 2:
            under_way.popleft().wait()
        fill(buffer, numbers)
        under_way.append(copy(buffer, len(numbers)))


def pads_to_the_buffer_s_size(numbers, buffers, turn, copy):
    buffer = buffers[turn]
    buffer[:] = [*numbers, *[0] * (len(buffer) - len(numbers))]
    return copy(buffer=buffer, n=len(numbers))


def from_numpy(numbers, buffers, turn, copy):
    fill(buffers[turn], np.array(numbers))
    return copy(buffers[turn], np.int64(len(numbers)))


RIGHT_SENDS = [
    keeps_all_copies,
    in_a_queue,
    taking_turns(pads_to_the_buffer_s_size),
    taking_turns(from_numpy),
]


# --- the next place: wrong -----------------------------------------------------------------------------


def places(block_tables, context_lens, slot_mapping, block_size):
    pairs = []
    for slot in slot_mapping:
        n = context_lens[slot]
        pairs.append(None if n < 0 else (block_tables[slot][n // block_size], n % block_size))
    return pairs


def each_row(place):
    """An answer that gives `place(tables, lens, slot, row of the batch, block_size)` for each row."""

    def next_places(block_tables, context_lens, slot_mapping, block_size):
        return [place(block_tables, context_lens, slot, b, block_size) for b, slot in enumerate(slot_mapping)]

    return next_places


def counts_up(block_tables, context_lens, slot_mapping, block_size):
    answer = places(block_tables, context_lens, slot_mapping, block_size)
    for slot in slot_mapping:
        context_lens[slot] += context_lens[slot] >= 0
    return answer


def never_ends(block_tables, context_lens, slot_mapping, block_size):
    while slot_mapping:
        pass


WRONG_PLACES = {
    "the place of the last token": (
        each_row(lambda t, n, s, b, size: (t[s][(n[s] - 1) // size], (n[s] - 1) % size)),
        "The next one goes into place 2 there",
    ),
    "counted from one": (
        each_row(lambda t, n, s, b, size: (t[s][n[s] // size], n[s] % size + 1)),
        "place 2 there",
    ),
    "the first block": (each_row(lambda t, n, s, b, size: (t[s][0], n[s] % size)), "2 are in block 9"),
    "the index in place of the block": (
        each_row(lambda t, n, s, b, size: (n[s] // size, n[s] % size)),
        "2 are in block 9",
    ),
    "the pair turned round": (
        each_row(lambda t, n, s, b, size: (n[s] % size, t[s][n[s] // size])),
        "expected [(9, 2)]",
    ),
    "the whole length as the place": (
        each_row(lambda t, n, s, b, size: (t[s][n[s] // size], n[s])),
        "2 are in block 9",
    ),
    "a full block written again": (
        each_row(lambda t, n, s, b, size: (t[s][(n[s] - 1) // size], n[s] % size)),
        "its next block, 8",
    ),
    "the row of the batch as the slot": (
        each_row(lambda t, n, s, b, size: (t[b][n[b] // size], n[b] % size)),
        "slot_mapping[b]",
    ),
    "the length of the row, the table of the slot": (
        each_row(lambda t, n, s, b, size: (t[s][n[b] // size], n[b] % size)),
        "both its table and its length",
    ),
    "padding written": (
        each_row(lambda t, n, s, b, size: (t[s][n[s] // size], n[s] % size)),
        "nothing is stored for it",
    ),
    "padding left out": (
        lambda block_tables, context_lens, slot_mapping, block_size: [
            pair for pair in places(block_tables, context_lens, slot_mapping, block_size) if pair
        ],
        "nothing is stored for it",
    ),
    "blocks of 4": (
        each_row(lambda t, n, s, b, size: None if n[s] < 0 else (t[s][n[s] // 4], n[s] % 4)),
        "Here a block has 3 places",
    ),
    "an empty slot is for padding": (
        each_row(lambda t, n, s, b, size: None if n[s] <= 0 else (t[s][n[s] // size], n[s] % size)),
        "Only -1 is for padding",
    ),
    "counts the tokens up": (counts_up, "changed its argument context_lens to [7, 3, 4, -1]"),
    "never ends": (never_ends, "without an end"),
    "nothing": (lambda block_tables, context_lens, slot_mapping, block_size: None, "expected [(9, 2)]"),
}


# --- the next place: right -----------------------------------------------------------------------------


def by_divmod(block_tables, context_lens, slot_mapping, block_size):
    def of(slot):
        entry, place = divmod(context_lens[slot], block_size)
        return (block_tables[slot][entry], place) if context_lens[slot] >= 0 else None

    return tuple(map(of, slot_mapping))


def in_numpy(block_tables, context_lens, slot_mapping, block_size):
    lens = np.array(context_lens)[slot_mapping]
    blocks = np.array(block_tables)[slot_mapping, lens // block_size]
    pairs = np.stack([blocks, lens % block_size], axis=1)
    return [pair if n >= 0 else None for pair, n in zip(pairs, lens, strict=True)]


RIGHT = [
    *((SEND_ALL, attempt) for attempt in RIGHT_SENDS),
    *((NEXT_PLACES, attempt) for attempt in (places, by_divmod, in_numpy)),
]
WRONG = [
    *((SEND_ALL, *wrong) for wrong in WRONG_SENDS),
    *((NEXT_PLACES, *wrong) for wrong in WRONG_PLACES.values()),
]


@pytest.mark.parametrize("exercise", [SEND_ALL, NEXT_PLACES], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@pytest.mark.parametrize(
    ("exercise", "attempt", "words"), WRONG, ids=[*(a.__name__ for a, _ in WRONG_SENDS), *WRONG_PLACES]
)
def test_a_wrong_answer_is_told_what_it_breaks(exercise, attempt, words):
    assert words in exercise.grade(attempt)


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "attempt"), RIGHT, ids=[a.__name__ for _, a in RIGHT])
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert exercise.grade(attempt) == f"{exercise.name}: right, all {len(exercise.cases)} cases."


def test_a_verdict_tells_what_was_there_and_what_was_seen():
    assert SEND_ALL.grade(waits_for_every_copy) == (
        "send_all: with messages=[[1, 2], [3, 4]], device='late', the copies that were waited for: [0, 1], "
        "expected []. Neither buffer has a copy under way when it is first written, so there is nothing to "
        "wait for, and nobody has to wait at the end. (3 of 7 cases passed)"
    )


# --- the solution and the engine -----------------------------------------------------------------------


def test_the_solution_says_where_live_engines_write():
    """Blocks and places that the device looked up in three steps, some at a boundary, in each layer."""
    engine = prefilled(THIS)
    slots, device_step = engine.decode_step.slots, engine.decode_step.device_step
    expected, written = [], []

    def note_expected(*_):
        mapping = slots.slot_mapping[: len(engine.scheduler.running)].tolist()
        tables, lens = slots.block_tables.tolist(), slots.context_lens.tolist()
        expected.extend(NEXT_PLACES.solution(table, lens, mapping, 4) for table in tables)

    def note_written(k_cache, v_cache, key, value, block_idx, pos):
        written.append(list(zip(block_idx.tolist(), pos.tolist(), strict=True)))

    with (
        watch.replaced(device_step.attention, "kv_append", watch.noting(note_written)),
        watch.replaced(engine.decode_step, "device_step", watch.noting(note_expected)),
    ):
        for _ in range(3):
            engine.step()
    assert written == expected and {0, 3} <= {place for step in written for _, place in step}
