"""The graders of lesson 06: wrong answers get their own words, and right ones are right in any clothes."""

from collections import deque
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from helpers import make_engine, small_model

from labkit import SamplingParams, watch
from labkit.ladder import LADDER
from labkit.learn import lesson_06, not_attempted
from labkit.learn.lesson_06 import SEND_ALL, WHAT_IS_SENT

THIS = LADDER["06"].options


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
    (lesson_06.one_buffer, "let the buffers take turns"),
    (one_buffer_that_waits, "nothing to wait for"),
    (waits_for_every_copy, "nothing to wait for"),
    (waits_at_the_end, "nobody has to wait at the end"),
    (lesson_06.two_without_waiting, "meets the first buffer again"),
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


# --- what is sent: wrong -------------------------------------------------------------------------------


def parts(mapped, running, changed):
    joined = [name for name in running if name not in mapped]
    dirty = [name for place, name in enumerate(running) if place in changed or name in joined]
    return {"mapping": running != mapped, "states": joined, "rows": dirty}


def but(**other):
    """The right answer, but for some of its parts: each a function of the arguments."""

    def what_is_sent(mapped, running, changed):
        wrong = {name: part(mapped, running, changed) for name, part in other.items()}
        return {**parts(mapped, running, changed), **wrong}

    return what_is_sent


def appends_to_its_argument(mapped, running, changed):
    for place, name in enumerate(running):
        if name not in mapped and place not in changed:
            changed.append(place)
    return {**parts(mapped, running, changed), "rows": [running[place] for place in sorted(changed)]}


def joined_of(mapped, running):
    return [name for name in running if name not in mapped]


def row_of_the_step_before(mapped, running, changed):
    names = [mapped[place] for place in changed if place < len(mapped)]
    return [name for name in running if name not in mapped or name in names]


WRONG_SENT = {
    "everything every time": (
        lambda mapped, running, changed: {"mapping": True, "states": running, "rows": running},
        "knows all it needs",
    ),
    "nothing ever": (
        lambda mapped, running, changed: {"mapping": False, "states": [], "rows": []},
        "B took a block",
    ),
    "the mapping in every step": (but(mapping=lambda m, r, c: True), "knows all it needs"),
    "the mapping with a row": (but(mapping=lambda m, r, c: r != m or bool(c)), "only its row"),
    "a state with a row": (but(states=lambda m, r, c: parts(m, r, c)["rows"]), "only its row"),
    "the rows of who joins": (but(rows=lambda m, r, c: joined_of(m, r)), "only its row"),
    "the rows of who changed": (but(rows=lambda m, r, c: [r[b] for b in c]), "never seen its row"),
    "the mapping of who joins": (
        but(mapping=lambda m, r, c: bool(joined_of(m, r))),
        "row 1 of the batch is another request now",
    ),
    "a mapping by its length": (but(mapping=lambda m, r, c: len(m) != len(r)), "'mapping': False, expected"),
    "who left is sent, too": (
        but(states=lambda m, r, c: [name for name in m + r if (name in m) != (name in r)]),
        "B left",
    ),
    "places of the step before": (but(rows=row_of_the_step_before), "places in `running`"),
    "a row twice": (but(rows=lambda m, r, c: [r[b] for b in c] + joined_of(m, r)), "goes once"),
    "places, not requests": (
        but(rows=lambda m, r, c: [b for b, name in enumerate(r) if b in c or name not in m]),
        "only its row",
    ),
    "a mapping as a set": (but(mapping=lambda m, r, c: set(r) != set(m)), "in another order"),
    "a mapping as a sorted list": (but(mapping=lambda m, r, c: sorted(r) != sorted(m)), "in another order"),
    "rows of all who moved": (
        but(rows=lambda m, r, c: [n for b, n in enumerate(r) if b in c or m[b : b + 1] != [n]]),
        "keep their slots",
    ),
    "no join after a failed step": (
        but(states=lambda m, r, c: joined_of(m, r) if m else []),
        "trusted with nothing",
    ),
    "joined first": (
        but(rows=lambda m, r, c: joined_of(m, r) + [r[b] for b in c if r[b] in m]),
        "'rows': ['D', 'A'], expected ['A', 'D']",
    ),
    "in the order of changed": (
        but(rows=lambda m, r, c: [r[b] for b in c] + [n for n in joined_of(m, r) if r.index(n) not in c]),
        "in their order",
    ),
    "a set of states": (
        but(states=lambda m, r, c: set(joined_of(m, r))),
        "a set, where a list or a tuple was",
    ),
    "a string of rows": (but(rows=lambda m, r, c: "".join(parts(m, r, c)["rows"])), "a str, where a list"),
    "a tuple": (
        lambda mapped, running, changed: tuple(parts(mapped, running, changed).values()),
        "expected {",
    ),
    "another name": (
        lambda mapped, running, changed: {"map": False, "states": [], "rows": []},
        "expected {'mapping': False,",
    ),
    "appends to its argument": (appends_to_its_argument, "changed its argument changed to [2]"),
}


# --- what is sent: right -------------------------------------------------------------------------------


def by_sets(mapped, running, changed):
    joined = set(running) - set(mapped)
    dirty = joined | {running[place] for place in changed}
    order = running.index
    return {
        "rows": tuple(sorted(dirty, key=order)),
        "states": tuple(sorted(joined, key=order)),
        "mapping": int(mapped != running),
    }


def in_numpy(mapped, running, changed):
    names = np.array(running)
    joins = np.isin(names, mapped)
    dirty = ~joins
    dirty[changed] = True
    return {"mapping": not np.array_equal(mapped, names), "states": names[~joins], "rows": names[dirty]}


RIGHT = [
    *((SEND_ALL, attempt) for attempt in RIGHT_SENDS),
    *((WHAT_IS_SENT, attempt) for attempt in (parts, by_sets, in_numpy)),
]
WRONG = [
    *((SEND_ALL, *wrong) for wrong in WRONG_SENDS),
    *((WHAT_IS_SENT, *wrong) for wrong in WRONG_SENT.values()),
]


@pytest.mark.parametrize("exercise", [SEND_ALL, WHAT_IS_SENT], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@pytest.mark.parametrize(
    ("exercise", "attempt", "words"), WRONG, ids=[*(a.__name__ for a, _ in WRONG_SENDS), *WRONG_SENT]
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


@pytest.mark.parametrize("options", [THIS, replace(THIS, layer_tables="shared")], ids=["06", "shared"])
def test_the_solution_says_what_live_engines_send(options):
    """Requests that come and go, with shared prompts and boundaries: each step's sends, by the formula."""
    engine = make_engine(small_model(), options, block_size=4, max_batch_size=3, prefill_max_batch_size=1)
    for i, prompt in enumerate([(1, 2, 3), (1, 2, 3), (4, 5), (6,), (1, 2, 3, 4), (7, 8)]):
        engine.add_request(prompt, SamplingParams(max_new_tokens=3 + i * 7 % 10))
    mapped, kinds = [], set()
    while engine.has_work:
        sends = watch.record_sends(engine, 1)
        if sends.steps.empty:
            continue
        (step,) = sends.steps.to_dict("records")
        running = sends.requests["request"].tolist()
        changed = [b for b, took in enumerate(sends.requests["took"]) if took != "in_place"]
        expected = WHAT_IS_SENT.solution(mapped, running, changed)
        assert step["mapping"] == expected["mapping"]
        in_words = sends.requests.set_index("request")["sent"]
        assert [i for i in running if in_words[i] == "joined"] == expected["states"]
        assert [i for i in running if in_words[i] != "nothing"] == expected["rows"]
        kinds |= {(step["mapping"], bool(expected["states"]), bool(expected["rows"]))}
        mapped = running
    assert {(True, True, True), (False, False, False), (False, False, True)} <= kinds
