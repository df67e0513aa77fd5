"""The account of launches and reads: what is due, and what each session was made."""

from contextlib import contextmanager

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.engine.request import Request
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.in_flight import Account, flights_proven, names

REQUEST = Request(4, (1,), SamplingParams(max_new_tokens=5))


def test_what_is_left_to_launch_counts_what_was_launched():
    assert Account(REQUEST, num_first=1, num_launched=2).num_left == 2


def test_requests_are_named_in_words():
    assert names([REQUEST]) == "request 4" and names([REQUEST, REQUEST]) == "requests 4, 4"


def test_the_package_s_flights_hold_and_its_invariants_too():
    engine = make_engine(options=LADDER["10"].options)
    engine.add_request((1, 2, 3), SamplingParams(9, stop_on_eos=False))
    with flights_proven(engine) as invariants:
        while engine.has_work:
            engine.step()
            assert [i.off(engine) for i in invariants] == ["", "", "", ""]
    assert len(invariants) == 4


@contextmanager
def served(num_steps):
    """A request after so many steps, its own list of tokens, and what is off with who got them."""
    engine = make_engine(options=LADDER["10"].options)
    engine.add_request((1, 2, 3), SamplingParams(9, stop_on_eos=False))
    with flights_proven(engine) as (delivered, *_):
        for _ in range(num_steps):
            engine.step()
        (request,) = engine.scheduler.running
        yield engine, request.output_token_ids, lambda: delivered.off(engine)


def test_a_token_that_its_session_did_not_get_is_told():
    with served(4) as (_, tokens, off):
        made = tokens.pop(2)
        tokens.insert(2, made + 1)
        assert off().startswith(
            f"new token 2 of request 0 is {made + 1}, expected {made}, from row 0 of step 2:"
        )
        del tokens[2:]
        assert off().startswith(
            f"new token 2 of request 0 is missing, expected {made}, from row 0 of step 2:"
        )


def test_a_token_that_a_session_got_twice_or_from_nowhere_is_told():
    with served(4) as (_, tokens, off):
        assert not off()
        tokens.append(tokens[1])
        assert off() == (
            f"new token {len(tokens) - 1} of request 0 is {tokens[1]}, expected none so far. It is from "
            "row 0 of step 1, and was handed out before."
        )
        tokens[-1] = -1
        assert off().endswith("is -1, expected none so far. No step made it for request 0.")


def test_a_token_that_an_earlier_session_made_is_told():
    with served(4) as (engine, tokens, off):
        old = tokens[1]
        engine.scheduler.preempt_newest()
        for _ in range(3):
            engine.step()
        assert not off()
        tokens.append(old)
        assert off().endswith(
            f"is {old}, expected none so far. It is from row 0 of step 1, which was launched for an earlier "
            "session of request 0: it was preempted, and has come back in a new one."
        )


def test_a_step_that_is_read_with_nothing_behind_it_is_told():
    engine = make_engine(options=LADDER["09"].options)
    engine.add_request((1, 2, 3), SamplingParams(9))
    engine.step()
    with flights_proven(engine), pytest.raises(BrokenContract, match="step 1 is read with nothing behind it"):
        engine.step()


def test_a_request_that_is_left_out_of_a_launch_is_told():
    engine = make_engine(options=LADDER["09"].options)
    for _ in range(2):
        engine.add_request((1, 2, 3), SamplingParams(9, stop_on_eos=False))
    engine.step()
    first = dict([*engine.scheduler.running.items()][:1])
    told = "step 1 is launched without request 1, which may make 8 more"
    with flights_proven(engine), pytest.raises(BrokenContract, match=told):
        engine.decode_step.launch(first)
