"""The graders of lesson 11: wrong answers are refused in the contract's words, right ones are right."""

import heapq
import random

import numpy as np
import pytest

from labkit.learn import not_attempted
from labkit.learn.lesson_11.exercises import LANES_END, READ_TOO_EARLY, draw_kernels, draw_streams


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [LANES_END, READ_TOO_EARLY], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- two lanes and one memory ----------------------------------------------------------------------


def lanes_end(lanes, *wrong):
    """The solution with some things wrong."""
    ends, places, memory = [0] * len(lanes), [0] * len(lanes), 0
    while any(place < len(lane) for place, lane in zip(places, lanes, strict=True)):
        asks = [
            (ends[i] + lane[places[i]][0], -i if "the later lane first" in wrong else i)
            for i, lane in enumerate(lanes)
            if places[i] < len(lane)
        ]
        if "the shortest first" in wrong:
            asks = [(lanes[i][places[i]][1], i) for _, i in asks]
        if "in order of the lanes" in wrong:
            asks = [(0, i) for _, i in asks]
        if "round and round" in wrong:
            asks = [(places[i], i) for _, i in asks]
        _, i = min(asks)
        i = abs(i)
        waits, moves = lanes[i][places[i]]
        ready = ends[i] + waits
        if "waits after its turn" in wrong:
            ready = max(ends[i], memory) + waits
        start = ready if "memory serves all" in wrong else max(ready, memory)
        if "never waits" in wrong:
            start = max(ends[i], memory)
        memory = ends[i] = start + moves
        places[i] += 1
    if "the last of all" in wrong:
        return max(ends, default=0)
    if "no lane, no end" in wrong:
        return [end for end, lane in zip(ends, lanes, strict=True) if lane]
    return ends


WRONG_ENDS = {
    "memory serves all": "Both wait at once",
    "the later lane first": "Lane 0 waits from 10 to 14 while lane 1 moves bytes",
    "in order of the lanes": "Lane 0 waits from 10 to 14 while lane 1 moves bytes",
    "round and round": "Whoever asks first is served first",
    "the shortest first": "Both wait at once",
    "waits after its turn": "Both wait at once",
    "never waits": "A kernel waits, and then moves its bytes",
    "the last of all": "gave 7, an int, where a list or a tuple was expected",
    "no lane, no end": "A lane without kernels ends at 0",
}


@pytest.mark.parametrize("wrong", WRONG_ENDS)
def test_wrong_ends_are_refused(wrong):
    def attempt(lanes):
        return lanes_end(lanes, wrong)

    verdict = LANES_END.grade(attempt)
    assert WRONG_ENDS[wrong] in verdict, verdict


def sum_of_each(lanes):
    return [sum(waits + moves for waits, moves in lane) for lane in lanes]


def half_the_rate_each(lanes):
    return [sum(waits + len(lanes) * moves for waits, moves in lane) for lane in lanes]


def returns_nothing(lanes):
    lanes_end(lanes)


def empties_its_argument(lanes):
    ends = lanes_end(lanes)
    lanes.clear()
    return ends


@pytest.mark.parametrize("attempt", [sum_of_each, half_the_rate_each, returns_nothing, empties_its_argument])
def test_other_wrong_ends_are_refused(attempt):
    assert "right" not in LANES_END.grade(attempt)


def by_a_heap(lanes):
    ends, memory = [0] * len(lanes), 0
    heap = [(lane[0][0], i, 0) for i, lane in enumerate(lanes) if lane]
    heapq.heapify(heap)
    while heap:
        asks, i, place = heapq.heappop(heap)
        memory = ends[i] = max(asks, memory) + lanes[i][place][1]
        if place + 1 < len(lanes[i]):
            heapq.heappush(heap, (ends[i] + lanes[i][place + 1][0], i, place + 1))
    return tuple(ends)


def as_an_array(lanes):
    return np.array(lanes_end(lanes))


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [by_a_heap, as_an_array, lanes_end])
def test_right_ends_in_other_clothes(attempt):
    assert LANES_END.grade(attempt).startswith("lanes_end: right")


# --- what is read too early ------------------------------------------------------------------------


def read_too_early(events, *wrong):
    """The solution with some things wrong."""
    seen, maker, launched_in, found, number = {}, {}, {}, [], 0
    for at, (what, stream, *rest) in enumerate(events):
        known = seen.setdefault(stream, set())
        if what == "wait":
            (other,) = rest
            if "waits mean nothing" in wrong:
                continue
            if "the other way" in wrong:
                seen.setdefault(other, set()).update(known)
            elif "both ways" in wrong:
                known |= seen.setdefault(other, set())
                seen[other] |= known
            elif "for ever" in wrong:
                seen[stream] = seen.setdefault(other, set())
            elif "not handed on" in wrong:
                known |= {n for n in seen.get(other, ()) if launched_in[n] == other}
            else:
                known |= seen.get(other, set())
            continue
        reads, writes = rest
        count = at if "waits have numbers" in wrong else number
        for name in writes if "looks at writes" in wrong else reads:
            last = maker.get(name, -1 if "weights are made" in wrong else None)
            if last is not None and last not in known:
                found.append((count, name))
        known.add(number)
        launched_in[number] = stream
        for name in writes:
            if "the first writer" in wrong and name in maker:
                continue
            maker[name] = number
        number += 1
    if "each launch once" in wrong:
        return list(dict(reversed(found)).items())[::-1]
    if "sorted by tensor" in wrong:
        return sorted(found, key=lambda pair: pair[1])
    if "whether there is one" in wrong:
        return bool(found)
    return found


WRONG_READS = {
    "waits mean nothing": "The fork is there, the join is not",
    "the other way": "The fork is there, the join is not",
    "both ways": "A wait has a direction",
    "for ever": "The fork is there, the join is not",
    "not handed on": "Who waits for the side stream waits for what that has waited for",
    "waits have numbers": "Waits have no number",
    "looks at writes": "The side stream does not wait",
    "weights are made": "What no launch has written was there from the start",
    "the first writer": "the last launch that writes it",
    "each launch once": "all 8 cases passed, but not a random one",
    "sorted by tensor": "all 8 cases passed, but not a random one",
    "whether there is one": "gave False, a bool, where a list or a tuple was expected",
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_READS)
def test_wrong_reads_are_refused(wrong):
    def attempt(events):
        return read_too_early(events, wrong)

    verdict = READ_TOO_EARLY.grade(attempt)
    assert WRONG_READS[wrong] in verdict, verdict


def by_looking_back(events):
    """From each launch backwards: what does it wait for?"""
    numbers = np.cumsum([event[0] == "launch" for event in events]) - 1
    found = []
    for at, event in enumerate(events):
        if event[0] == "wait":
            continue
        waits_for, streams = set(), {event[1]}
        for i in range(at - 1, -1, -1):
            what, stream, *rest = events[i]
            if stream in streams:
                streams |= {rest[0]} if what == "wait" else set()
                waits_for |= {i} if what == "launch" else set()
        for name in event[2]:
            last = [i for i in range(at) if events[i][0] == "launch" and name in events[i][3]]
            if last and last[-1] not in waits_for:
                found.append([int(numbers[at]), name])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [by_looking_back, read_too_early])
def test_right_reads_in_other_clothes(attempt):
    assert READ_TOO_EARLY.grade(attempt).startswith("read_too_early: right")


# --- what is drawn ---------------------------------------------------------------------------------


def test_random_calls_reach_what_the_cases_are_about():
    rng = random.Random(0)
    lanes = [draw_kernels(rng)["lanes"] for _ in range(100)]
    assert any([] in lane for lane in lanes) and {len(lane) for lane in lanes} == {1, 2, 3}
    calls = [draw_streams(rng)["events"] for _ in range(100)]
    found = [READ_TOO_EARLY.solution(events) for events in calls]
    assert 20 < sum(map(bool, found)) < 95 and any(len({n for n, _ in f}) < len(f) for f in found)
