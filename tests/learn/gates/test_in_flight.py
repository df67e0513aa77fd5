"""The account of launches and reads: what is due, and what each session was made."""

from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.gates.in_flight import flights_proven


def test_the_package_s_flights_hold_and_a_token_that_its_session_did_not_get_is_told():
    engine = make_engine(options=LADDER["10"].options)
    engine.add_request((1, 2, 3), SamplingParams(9, stop_on_eos=False))
    with flights_proven(engine) as invariants:
        for _ in range(4):
            engine.step()
            assert [i.off(engine) for i in invariants] == [""]
        (request,) = engine.scheduler.running
        tokens, delivered = request.output_token_ids, invariants[0]
        made = tokens.pop(2)
        tokens.insert(2, made + 1)
        assert delivered.off(engine) == f"new token 2 of request 0 is {made + 1}, expected {made}."
        del tokens[2:]
        assert delivered.off(engine) == f"new token 2 of request 0 is missing, expected {made}."
