"""The graders of lesson 10: wrong answers are refused in the contract's words, right ones are right."""

import random
from collections import defaultdict, deque

import numpy as np
import pytest
import torch

from labkit.learn import not_attempted
from labkit.learn.lesson_10.exercises import DELIVER, HANDED_OUT_AT, draw_events, draw_times


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [DELIVER, HANDED_OUT_AT], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


def deliver(events, eos, *wrong):
    """The solution with some things wrong."""
    sessions, launched, reached = {}, [], {}
    for what, *rest in events:
        if what == "joins":
            name, session = rest
            if "rejoining starts anew" in wrong:
                reached[name] = []
            if "rejoining keeps the session" in wrong:
                session = sessions.get(name) or session
            if "ends for good" in wrong and eos in reached.get(name, []):
                continue
            sessions[name] = session
            if "only who gets something" not in wrong:
                reached.setdefault(name, [])
        elif what == "leaves":
            if "leaving is forgotten" in wrong:
                continue
            if "leaving clears the launches" in wrong:
                launched.clear()
            if "leaving takes all back" in wrong:
                reached[rest[0]] = []
            if "leaving removes the request" in wrong:
                reached.pop(rest[0], None)
            sessions[rest[0]] = None
        elif what == "launch":
            names = rest[0]
            if "who runs, in order of joining" in wrong:
                names = [name for name, session in sessions.items() if session]
            if "sorted" in wrong:
                names = sorted(names)
            launched.append([(name, sessions[name]) for name in names])
            if "one launch at a time" in wrong:
                launched = launched[-1:]
        else:
            if "a read without a launch" in wrong and not launched:
                continue
            flight = launched.pop(-1 if "newest first" in wrong else 0)
            if "never takes a launch away" in wrong:
                launched.insert(0, flight)
            for (name, session), token_id in zip(flight, rest[0], strict=False):
                is_end = token_id == (0 if "0 ends" in wrong else eos)
                now = sessions[name]
                if "ends whoever it was for" in wrong and is_end:
                    sessions[name] = None
                if "whoever has its name" in wrong:
                    is_theirs = now is not None
                elif "a session not older" in wrong:
                    is_theirs = now is not None and now <= session
                elif "whoever it was for" in wrong:
                    is_theirs = True
                else:
                    is_theirs = now is not None and now == session
                if not is_theirs or ("no token is 0" in wrong and not token_id):
                    continue
                if is_end and "never ends" not in wrong:
                    sessions[name] = None
                    if "the end is kept back" in wrong:
                        continue
                if "each token once" in wrong and token_id in reached[name]:
                    continue
                reached.setdefault(name, []).append(token_id)
    if "the end is cut off" in wrong:
        return {n: [t for t in tokens if t != eos] for n, tokens in reached.items()}
    if "cut behind the end, at the end" in wrong:
        return {n: t[: t.index(eos) + 1] if eos in t else t for n, t in reached.items()}
    return reached


def never_forgets(events, eos):
    launched, reached = [], {}
    for what, *rest in events:
        if what == "joins":
            reached.setdefault(rest[0], [])
        elif what == "launch":
            launched.append(rest[0])
        elif what == "read":
            for name, token_id in zip(launched.pop(0), rest[0], strict=True):
                if eos not in reached[name]:
                    reached[name].append(token_id)
    return reached


def eats_the_events(events, eos):
    found = DELIVER.solution(events, eos)
    events.clear()
    return found


def waits_for_a_read_that_never_comes(events, eos):
    while events:
        pass


def with_names_twice(events, eos):
    return {name + "": (tokens, len(tokens)) for name, tokens in DELIVER.solution(events, eos).items()}


WRONG_DELIVERIES = {
    "who runs, in order of joining": "in the launch's order",
    "sorted": "B joined after the first launch",
    "one launch at a time": "raised IndexError",
    "newest first": "the oldest that has not been read",
    "never takes a launch away": "in the launch's order",
    "never ends": "nobody gets it",
    "the end is kept back": "is handed out",
    "the end is cut off": "is handed out",
    "0 ends": "0 is a token as any other",
    "no token is 0": "The token that ends a text is handed out",
    "leaving is forgotten": "no session any more",
    "leaving clears the launches": "raised IndexError",
    "leaving takes all back": "What was handed out stays handed out",
    "leaving removes the request": "no session any more",
    "rejoining starts anew": "What was handed out stays handed out",
    "whoever has its name": "not for the new one",
    "whoever it was for": "nobody gets it",
    "a session not older": "A token is handed out if its request is still in the session",
    "ends whoever it was for": "An end that nobody gets ends nobody",
    "only who gets something": "no session any more",
    "each token once": "A token is handed out if its request is still in the session",
}
OTHER_WRONG_DELIVERIES = {
    "never forgets": (never_forgets, "no session any more"),
    "tokens as a string": (
        lambda events, eos: {n: str(t) for n, t in deliver(events, eos).items()},
        "in the launch's order",
    ),
    "pairs": (lambda events, eos: list(deliver(events, eos).items()), "in the launch's order"),
    "tokens alone": (lambda events, eos: list(deliver(events, eos).values()), "in the launch's order"),
    "counts": (lambda events, eos: {n: len(t) for n, t in deliver(events, eos).items()}, "launch's order"),
    "with lengths": (with_names_twice, "in the launch's order"),
    "the other way round": (
        lambda events, eos: {n: t[::-1] for n, t in deliver(events, eos).items()},
        "in the launch's order",
    ),
    "sets": (lambda events, eos: {n: set(t) for n, t in deliver(events, eos).items()}, "launch's order"),
    "nothing": (lambda events, eos: None, "A function without `return` gives None"),
    "eats the events": (eats_the_events, "changed its argument events to []"),
    "waits": (waits_for_a_read_that_never_comes, "Is there a loop that never stops?"),
}
ALL_WRONG_DELIVERIES = OTHER_WRONG_DELIVERIES | {
    name: ((lambda events, eos, name=name: deliver(events, eos, name)), words)
    for name, words in WRONG_DELIVERIES.items()
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), ALL_WRONG_DELIVERIES.values(), ids=ALL_WRONG_DELIVERIES)
def test_a_wrong_delivery_is_refused_in_the_contract_s_words(attempt, words):
    assert words in DELIVER.grade(attempt)


def strikes_out_who_leaves(events, eos):
    """Another way: launches hold names alone, and those who leave or end are struck out of them."""
    launched, reached = deque(), defaultdict(list)

    def strike_out(name):
        for flight in launched:
            flight[:] = [None if each == name else each for each in flight]

    for event in events:
        match event:
            case ("joins", name, _):
                reached[name] += []
            case ("leaves", name):
                strike_out(name)
            case ("launch", names):
                launched.append(list(names))
            case ("read", tokens):
                for name, token_id in zip(launched.popleft(), tokens, strict=True):
                    if name is not None:
                        reached[name].append(token_id)
                        if token_id == eos:
                            strike_out(name)
    return reached


RIGHT_DELIVERIES = {
    "the solution with nothing wrong": lambda events, eos: deliver(events, eos),
    "strikes out who leaves": strikes_out_who_leaves,
    "tuples": lambda events, eos: {n: tuple(t) for n, t in deliver(events, eos).items()},
    "arrays": lambda events, eos: {n: np.array(t, dtype=int) for n, t in deliver(events, eos).items()},
    "tensors": lambda events, eos: {n: torch.tensor(t) for n, t in deliver(events, eos).items()},
    "in another order": lambda events, eos: dict(sorted(deliver(events, eos).items(), reverse=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_DELIVERIES.values(), ids=RIGHT_DELIVERIES)
def test_a_right_delivery_is_right_in_any_clothes(attempt):
    assert DELIVER.grade(attempt) == f"deliver: right, all {len(DELIVER.cases)} cases."


def test_random_events_preempt_behind_a_token_and_with_one_on_its_way():
    rng = random.Random(0)
    drawn = [draw_events(rng) for _ in range(100)]
    found = [DELIVER.solution(**each) for each in drawn]
    for wrong in ("leaving takes all back", "whoever has its name", "never ends", "ends whoever it was for"):
        differs = [
            deliver(each["events"], each["eos"], wrong) != right
            for each, right in zip(drawn, found, strict=True)
        ]
        assert sum(differs) >= 3, wrong


# --- going -----------------------------------------------------------------------------------------------


# --- when tokens are handed out --------------------------------------------------------------------


def handed_out(launch, gpu, accept, num_steps, ahead, *wrong):
    """The solution with some things wrong."""
    ends, times, host, free = [], [], 0, 0
    for step in range(num_steps):
        last = step + ahead if "launches behind the last step" in wrong else min(step + ahead, num_steps - 1)
        if "one launch at a time" in wrong:
            last = min(len(ends), num_steps - 1)
        while len(ends) <= last:
            host += 0 if "launches cost nothing" in wrong else launch
            begins = host if "steps side by side" in wrong else max(host, free)
            free = begins + gpu
            ends.append(free)
        waited = ends[-1] if "waits for the newest" in wrong else ends[step]
        host = (waited if "the host is not busy" in wrong else max(host, waited)) + accept
        times.append(host - accept if "when they are read" in wrong else host)
    return times


def wrongly(*what):
    return lambda **given: handed_out(*given.values(), *what)


WRONG_TIMES = {
    "always the sum": (
        lambda launch, gpu, accept, num_steps, ahead: [
            (n + 1) * (launch + gpu + accept) for n in range(num_steps)
        ],
        "before step 0 is read",
    ),
    "always the larger": (
        lambda launch, gpu, accept, num_steps, ahead: [
            launch + gpu + accept + n * max(gpu, launch + accept) for n in range(num_steps)
        ],
        "each step takes the sum",
    ),
    "launches behind the last step": (
        wrongly("launches behind the last step"),
        "Behind the last step nothing is launched",
    ),
    "one launch at a time": (wrongly("one launch at a time"), "One behind"),
    "launches cost nothing": (wrongly("launches cost nothing"), "One step: launch, GPU, accept"),
    "steps side by side": (wrongly("steps side by side"), "The GPU goes on at 12"),
    "waits for the newest": (wrongly("waits for the newest"), "before step 0 is read"),
    "the host is not busy": (wrongly("the host is not busy"), "A slow host"),
    "when they are read": (wrongly("when they are read"), "One step: launch, GPU, accept"),
    "step 0 as well": (lambda **given: [0, *handed_out(*given.values())], "One step: launch, GPU, accept"),
    "nothing": (lambda **_: None, "One step: launch, GPU, accept"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_TIMES.values(), ids=WRONG_TIMES)
def test_wrong_times_are_refused_in_the_contract_s_words(attempt, words):
    verdict = HANDED_OUT_AT.grade(attempt)
    assert words in verdict, verdict


def by_recurrence(launch, gpu, accept, num_steps, ahead):
    """Without a schedule: what each launch, each end and each read waits for."""
    launched, ended, read = [], [], []
    for step in range(num_steps):
        for n in range(len(launched), min(step + ahead + 1, num_steps)):
            launched.append(max([*launched[-1:], *read[-1:], 0]) + launch)
            ended.append(max(launched[n], *ended[-1:], 0) + gpu)
        read.append(max([ended[step], launched[-1], *read[-1:]]) + accept)
    return read


RIGHT_TIMES = {
    "loop": lambda **given: handed_out(*given.values()),
    "floats": lambda **given: [float(time) for time in handed_out(*given.values())],
    "tuple": lambda **given: tuple(handed_out(*given.values())),
    "array": lambda **given: np.array(handed_out(*given.values())),
    "recurrence": by_recurrence,
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_TIMES.values(), ids=RIGHT_TIMES)
def test_right_times_are_right_in_any_clothes(attempt):
    right = f"handed_out_at: right, all {len(HANDED_OUT_AT.cases)} cases."
    assert HANDED_OUT_AT.grade(attempt) == right


def test_random_times_are_of_slow_hosts_and_of_slow_gpus():
    rng = random.Random(0)
    drawn = [draw_times(rng) for _ in range(100)]
    slow_hosts = [d["launch"] + d["accept"] > d["gpu"] for d in drawn]
    assert 20 < sum(slow_hosts) < 80
    assert {d["ahead"] for d in drawn} == {0, 1, 2, 3} and min(d["num_steps"] for d in drawn) == 0
