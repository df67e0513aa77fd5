"""The graders of lesson 10: wrong answers are refused in the contract's words, right ones are right."""

import functools
import random
from collections import defaultdict, deque

import numpy as np
import pytest
import torch
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn import not_attempted
from labkit.learn.lesson_10 import DELIVER, GOING, Running, draw_events, draw_running
from labkit.watch import record_flights


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [DELIVER, GOING], ids=lambda e: e.name)
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


def goes(rule):
    return lambda running, in_flight: [r.name for r in running if rule(r, in_flight)]


def knows_no_sessions(running, in_flight):
    known = {"A": 1, "B": 2, "C": 3, "D": 4}
    return [r.name for r in running if r.made + (known.get(r.name) in in_flight) < r.limit]


def by_place(running, in_flight):
    """Takes the sessions for those of the requests, in order."""
    pairs = zip(running, [*in_flight, *[None] * len(running)], strict=False)
    return [r.name for r, session in pairs if r.made + (session is not None) < r.limit]


def takes_them_off(running, in_flight):
    names = []
    for r in running:
        if r.made + (r.session in in_flight) < r.limit:
            names.append(r.name)
        in_flight.discard(r.session)
    return names


def sorted_going(running, in_flight):
    return sorted(GOING.solution(running, in_flight))


def newest_first(running, in_flight):
    return GOING.solution(running, in_flight)[::-1]


def none_if_nobody(running, in_flight):
    return GOING.solution(running, in_flight) or None


def those_in_flight_first(running, in_flight):
    names = GOING.solution(running, in_flight)
    session = {r.name: r.session for r in running}
    return sorted(names, key=lambda name: session[name] not in in_flight)


KNOWN = "known in advance"
WRONG_GOINGS = {
    "ignores what is on its way": (goes(lambda r, way: r.made < r.limit), KNOWN),
    "everybody": (goes(lambda r, way: True), KNOWN),
    "stops one late": (goes(lambda r, way: r.made + (r.session in way) <= r.limit), KNOWN),
    "stops one early": (goes(lambda r, way: r.made + 1 + (r.session in way) < r.limit), "has joined since"),
    "counts one for everybody": (goes(lambda r, way: r.made + 1 < r.limit), "has joined since"),
    "only those in flight": (goes(lambda r, way: r.session in way and r.made + 1 < r.limit), "joined since"),
    "only those not in flight": (goes(lambda r, way: r.session not in way), "have room for the token"),
    "counts all that is on its way": (goes(lambda r, way: r.made + len(way) < r.limit), "has joined since"),
    "one on its way for all": (goes(lambda r, way: r.made + bool(way) < r.limit), "has joined since"),
    "not the limit itself": (goes(lambda r, way: r.made + (r.session in way) != r.limit - 1), KNOWN),
    "the tokens so far": (goes(lambda r, way: r.made + (r.made in way) < r.limit), KNOWN),
    "the name": (goes(lambda r, way: r.made + (r.name in way) < r.limit), KNOWN),
    "a limit of 8": (goes(lambda r, way: r.made + (r.session in way) < 8), "All have their last token"),
    "sessions of old": (
        goes(lambda r, way: r.made + (r.session <= max(way)) < r.limit),
        "has joined since",
    ),
    "sessions, not older": (
        goes(lambda r, way: r.made + (r.session >= min(way, default=99)) < r.limit),
        "has joined since",
    ),
    "known by name": (knows_no_sessions, "came back in session 9"),
    "by place": (by_place, "has joined since"),
    "sorts": (sorted_going, "order of the batch"),
    "newest first": (newest_first, "Both have room"),
    "those in flight first": (those_in_flight_first, "has joined since"),
    "none if nobody": (none_if_nobody, "nobody is launched"),
    "a set": (lambda **given: set(GOING.solution(**given)), "where a list or a tuple was expected"),
    "a string": (lambda **given: ", ".join(GOING.solution(**given)), "where a list or a tuple was expected"),
    "requests": (lambda running, in_flight: running, "Both have room"),
    "sessions": (lambda running, in_flight: [r.session for r in running], "Both have room"),
    "yes and no": (lambda running, in_flight: [r.made + 1 < r.limit for r in running], "Both have room"),
    "a filter": (
        lambda running, in_flight: (r.name for r in running),
        "where a list or a tuple was expected",
    ),
    "takes them off": (takes_them_off, "changed its argument in_flight to set()"),
    "too far": (lambda running, in_flight: running[99], "raised IndexError"),
    "nothing": (lambda running, in_flight: None, "A function without `return` gives None"),
}


@pytest.mark.parametrize(("attempt", "words"), WRONG_GOINGS.values(), ids=WRONG_GOINGS)
def test_whom_else_to_launch_is_refused_in_the_contract_s_words(attempt, words):
    assert words in GOING.grade(attempt)


def by_loop(running, in_flight):
    names = []
    for name, made, limit, session in running:
        if session in in_flight:
            made += 1
        if limit > made:
            names += [name]
    return names


RIGHT_GOINGS = {
    "tuple": lambda **given: tuple(GOING.solution(**given)),
    "array": lambda **given: np.array(GOING.solution(**given)),
    "loop": by_loop,
    "tokens left": goes(lambda r, way: r.limit - r.made - int(r.session in way) >= 1),
    "partial": functools.partial(GOING.solution),
    "two questions": goes(lambda r, way: r.made + 1 < r.limit or (r.made < r.limit and r.session not in way)),
}


@pytest.mark.parametrize("attempt", RIGHT_GOINGS.values(), ids=RIGHT_GOINGS)
def test_who_goes_on_is_right_in_any_clothes(attempt):
    assert GOING.grade(attempt) == f"going: right, all {len(GOING.cases)} cases."


def test_random_requests_are_at_their_limits_and_others_are_in_flight():
    rng = random.Random(0)
    drawn = [draw_running(rng) for _ in range(100)]
    ends = [(r.made + 1 == r.limit, r.session in d["in_flight"]) for d in drawn for r in d["running"]]
    assert {ends.count((last, flies)) > 20 for last in (True, False) for flies in (True, False)} == {True}
    assert any(d["in_flight"] - {r.session for r in d["running"]} for d in drawn)
    assert any(not d["running"] for d in drawn)


def test_the_rule_is_the_one_that_the_engine_follows():
    """Requests of all lengths, some of which join later."""
    engine = make_engine(options=LADDER["10"].options, prefix_cache=False)
    prompts = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4)]
    for prompt, length in zip(prompts, (3, 9, 6, 12), strict=True):
        engine.add_request(prompt, SamplingParams(length, stop_on_eos=False))
    for call in range(14):
        if call in (3, 6):
            engine.add_request((call, 7), SamplingParams(5, stop_on_eos=False))
        in_flight = engine.readback._in_flight
        state = [
            Running(r.request_id, len(r.output_token_ids), r.params.max_new_tokens, id(session))
            for r, session in engine.scheduler.running.items()
        ]
        steps_before = engine.stats().counters.decode_steps
        with record_flights(engine) as watched:
            engine.step()
        if engine.stats().counters.decode_steps == steps_before:
            continue  # an admission
        if in_flight is None:  # then the first launch is of everybody
            sessions = {request.session for request in state}
            assert watched.flights.pop(0).request_ids == [r.name for r in state]
        else:
            sessions = {id(session) for session in in_flight.sessions}
        expected = GOING.solution(state, sessions)
        assert [f.request_ids for f in watched.flights] == ([expected] if expected else [])
