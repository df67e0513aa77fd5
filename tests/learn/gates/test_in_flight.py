"""The account of launches and reads: what is due, and what each session was made."""

from contextlib import contextmanager

from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.gates.in_flight import flights_proven


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
