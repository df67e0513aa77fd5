"""Errors outside of a step: in the worker's own work, and in a consumer's."""

import asyncio
from contextlib import ExitStack

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


async def until_the_end_async(stream):
    received = ()
    try:
        async for chunk in stream:
            received += chunk.token_ids
    except StreamError as error:
        return received, error
    return received, None


def read_by_threads(server, gate, go_on):
    streams = gate.submit_all(server.submit, PROMPTS, EACH_PARAMS)
    reading = [start(tokens_until_the_end, stream) for stream in streams]
    go_on()
    return [each.result(TIMEOUT) for each in reading]


def read_by_tasks(server, gate, go_on):
    async def read_all():
        streams = gate.submit_all(server.submit_async, PROMPTS, EACH_PARAMS)
        go_on()
        return await asyncio.gather(*map(until_the_end_async, streams))

    return asyncio.run(read_all())


@pytest.mark.parametrize("read_all", [read_by_threads, read_by_tasks])
@pytest.mark.parametrize("at_call", [0, 3, 8])
@pytest.mark.parametrize("name", ["step", "hand_over", "deliver", "read_inbox"])
@pytest.mark.parametrize("rung", ["00", "10", "14"])
def test_a_worker_that_dies_between_two_steps_tells_each_consumer(rung, name, at_call, read_all):
    """Each has the beginning of its tokens, nobody waits for ever, and the engine is anybody's again."""
    engine = make_engine(options=ENGINES[rung], max_batch_size=4)
    step, gate = engine.step, Gate(engine)
    with StreamingServer(engine) as server, ExitStack() as planted:

        def go_on():
            dies = replaced(server.worker, name, lambda inner: failing(inner, at_call))
            planted.enter_context(dies)
            gate.allow()

        told = read_all(server, gate, go_on)
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


def test_a_chunk_that_a_task_cannot_decode_ends_its_stream_alone(monkeypatch):
    async def read_both(server):
        bad, good = (server.submit_async(PROMPTS[0], EACH_PARAMS[0]) for _ in range(2))
        monkeypatch.setattr(bad._decoder, "push", failing(bad._decoder.push, 7))  # its last one
        for _ in range(2):
            with pytest.raises(Boom):
                [chunk async for chunk in bad]
        return await until_the_end_async(good)

    with serving() as server:
        assert asyncio.run(read_both(server)) == (EXPECTED[0], None)


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
