"""Steps in flight: what was launched, what was read, and who got the tokens."""

import pytest
from helpers import GREEDY, assert_no_block_is_lost, make_engine, small_model, tokens_alone

from labkit import LADDER
from labkit.watch import record_flights

AT_ONCE, ONE_BEHIND = LADDER["09"].options, LADDER["10"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4)]


def watched_run(options, each_params, model=None, **settings):
    engine = make_engine(model, options=options, prefix_cache=False, **settings)
    ids = [engine.add_request(*each) for each in zip(PROMPTS, each_params, strict=False)]
    outputs = []
    with record_flights(engine) as watched:
        while engine.has_work:
            outputs += engine.step()
    assert_no_block_is_lost(engine)
    tokens = [tuple(o.token_id for o in outputs if o.request_id == i) for i in ids]
    return watched, tokens


def test_a_text_that_ends_wastes_one_token():
    eos = tokens_alone(PROMPTS[0], GREEDY)[3]
    model = small_model(eos_token_id=eos)
    watched, tokens = watched_run(ONE_BEHIND, [GREEDY] * 4, model)
    at_once, expected = watched_run(AT_ONCE, [GREEDY] * 4, model)
    assert tokens == expected
    ended = sum(made[-1] == eos and len(made) < 8 for made in tokens)
    assert ended and watched.tokens_to_nobody == ended and at_once.tokens_to_nobody == 0
    read = [flight for flight in watched.flights if flight.read_in]
    (flight,) = (f for f in read if 0 in f.request_ids and f.token_ids[0] == eos and 0 in f.handed_to)
    after = watched.flights[flight.number]
    assert 0 in after.request_ids and 0 not in after.handed_to


def test_only_steps_that_are_launched_can_be_watched():
    with (
        pytest.raises(ValueError, match="rung 06"),
        record_flights(make_engine(options=LADDER["05"].options)),
    ):
        pass
