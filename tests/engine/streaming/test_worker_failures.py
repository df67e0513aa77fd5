"""Errors outside of a step: in the worker's own work, and in a consumer's."""

import pytest
from helpers import ENGINES, Boom, assert_no_block_is_lost, failing, make_engine
from streaming_helpers import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PROMPTS,
    TIMEOUT,
    Gate,
    labkit_threads,
    read,
    serving,
    start,
    tokens_in,
    tokens_until_the_end,
)

from labkit.engine import StreamingServer
from labkit.errors import StreamError
from labkit.watch.replaced import replaced

# --- the worker dies between two steps -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("at_call", [0, 3, 8])
@pytest.mark.parametrize("name", ["step", "hand_over", "deliver", "read_inbox"])
@pytest.mark.parametrize("rung", ["00", "10", "14"])
def test_a_worker_that_dies_between_two_steps_tells_each_consumer(submit_to, rung, name, at_call):
    """Each has the beginning of its tokens, nobody waits for ever, and the engine is anybody's again."""
    engine = make_engine(options=ENGINES[rung], max_batch_size=4)
    step, gate = engine.step, Gate(engine)
    with StreamingServer(engine) as server:
        streams = gate.submit_all(submit_to(server), PROMPTS, EACH_PARAMS)
        reading = [start(tokens_until_the_end, stream) for stream in streams]
        with replaced(server.worker, name, lambda inner: failing(inner, at_call)):
            gate.allow()
            told = [each.result(TIMEOUT) for each in reading]
        with pytest.raises(StreamError, match="the server is closed"):
            server.submit(PROMPTS[0], LONG)
    assert any(error for _, error in told)
    for (received, error), expected in zip(told, EXPECTED, strict=True):
        assert received == expected[: len(received)], "lost or doubled tokens"
        if error is None:
            assert received == expected
        else:
            assert f"the server broke down when this request had {len(received)} token" in str(error)
            assert isinstance(error.__cause__, Boom)
    assert labkit_threads() == []
    assert_no_block_is_lost(engine)
    engine.step = step
    with serving(engine) as server:
        assert tokens_in(read(server.submit(PROMPTS[0], EACH_PARAMS[0]))) == EXPECTED[0]


# --- a consumer raises -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["push", "finish"])
def test_a_chunk_that_cannot_be_decoded_ends_its_stream_alone(monkeypatch, name):
    """And again, if asked again: the chunk behind it would hide that one is lost, or never come."""
    with serving() as server:
        bad, good = (server.submit(PROMPTS[0], EACH_PARAMS[0]) for _ in range(2))
        monkeypatch.setattr(bad._decoder, name, failing(getattr(bad._decoder, name), 2 * (name == "push")))
        received = []
        with pytest.raises(Boom):
            received += bad
        assert tokens_in(received) == EXPECTED[0][: 2 if name == "push" else -1]
        with pytest.raises(Boom):
            next(bad)
        assert tokens_in(read(good)) == EXPECTED[0]


@pytest.mark.parametrize("stream_interval", [1, 3])
def test_a_consumer_that_raises_cancels_its_request_alone(stream_interval):
    def consumer(which):
        with server.submit(PROMPTS[which], EACH_PARAMS[which]) as stream:
            for chunk in stream:
                if which % 2 == 0:
                    raise Boom
                received[which] += chunk.token_ids

    received = dict.fromkeys(range(len(PROMPTS)), ())
    engine = make_engine()
    with serving(engine, stream_interval=stream_interval) as server:
        for which, each in enumerate([start(consumer, which) for which in range(len(PROMPTS))]):
            assert isinstance(each.exception(TIMEOUT), Boom if which % 2 == 0 else type(None))
    assert received == {which: () if which % 2 == 0 else EXPECTED[which] for which in received}
