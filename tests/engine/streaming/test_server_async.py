"""The server and event loops: which requests it refuses, and how streams end when it is closed."""

import asyncio
import gc

import pytest
from async_helpers import read, read_until_error
from helpers import GREEDY, Boom, assert_no_block_is_lost, failing, make_engine, tokens_alone
from streaming_helpers import LONG, TIMEOUT, Gate, hold, labkit_threads, serving, start, tokens_in, wait_for

from labkit import SamplingParams
from labkit.engine import StreamingServer
from labkit.errors import OverloadedError, RequestError, StreamError

# --- requests that are refused ---------------------------------------------------------------------


def test_without_an_event_loop_a_request_is_refused_and_takes_no_room():
    with serving(max_inflight_requests=1) as server:
        for _ in range(2):
            with pytest.raises(StreamError, match="no event loop runs in this thread: call submit_async in"):
                server.submit_async((1, 2, 3), GREEDY)
        assert tokens_in(list(server.submit((1, 2, 3), GREEDY))) == tokens_alone((1, 2, 3), GREEDY)


def test_a_request_that_can_never_run_is_refused_at_once_and_takes_no_room():
    async def submit(server):
        for _ in range(2):
            with pytest.raises(RequestError, match="token id 256 is not in the vocabulary"):
                server.submit_async((1, 256), GREEDY)
        return await read(server.submit_async((1, 2, 3), GREEDY))

    with serving(max_inflight_requests=1) as server:
        assert tokens_in(asyncio.run(submit(server))) == tokens_alone((1, 2, 3), GREEDY)


def test_text_that_others_tokenize_is_refused_by_the_stream():
    async def submit(server):
        stream = server.submit_async("x" * 60, GREEDY)
        for _ in range(2):
            with pytest.raises(RequestError, match="60 tokens and max_new_tokens is 8"):
                await anext(stream)
        return await read(server.submit_async("ab", GREEDY))

    with serving(tokenize_workers=2, max_inflight_requests=1) as server:
        assert tokens_in(asyncio.run(submit(server))) == tokens_alone((97, 98), GREEDY)


def test_when_there_are_too_many_unfinished_requests_submit_async_refuses():
    engine = make_engine()
    gate = Gate(engine)

    async def overload(server):
        first, second = gate.submit_all(
            server.submit_async, [(1, 2, 3), (5, 6)], [SamplingParams(1), SamplingParams(5)]
        )
        with pytest.raises(OverloadedError, match="2 requests are unfinished and max_inflight_requests is 2"):
            server.submit_async((7,), GREEDY)
        gate.allow(3)
        assert len(await read(first)) == 1
        third = server.submit_async((7,), GREEDY)  # at once: whoever has the last chunk finds room
        with pytest.raises(OverloadedError):
            server.submit_async((7,), GREEDY)
        second.close()
        gate.allow()
        assert tokens_in(await read(third)) == tokens_alone((7,), GREEDY)

    with serving(engine, max_inflight_requests=2) as server:
        asyncio.run(overload(server))
    assert engine.stats().counters.finished == {"length": 2, "cancelled": 1}


def test_a_request_that_the_engine_refuses_after_all_fails_alone(monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine, "add_request", failing(engine.add_request))

    async def submit(server):
        with pytest.raises(Boom):
            await anext(server.submit_async((1, 2, 3), GREEDY))
        return await read(server.submit_async((5, 6), GREEDY))

    with serving(engine, max_inflight_requests=1) as server:
        assert tokens_in(asyncio.run(submit(server))) == tokens_alone((5, 6), GREEDY)


# --- the server's end ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 4])
def test_closing_the_server_ends_each_stream_with_an_error_after_what_it_has(stream_interval):
    engine = make_engine(max_batch_size=2)
    prompts = [(1, 2, 3), (5, 6), (7,)]  # the third still waits

    async def close(server):
        hold(server)
        streams = [server.submit_async(prompt, LONG) for prompt in prompts]
        wait_for(lambda: engine.stats().waiting == 1)  # the engine has them all
        reading = [asyncio.create_task(read_until_error(streams[i])) for i in (0, 2)]
        first = (await anext(streams[1])).token_ids
        server.close()  # on the loop itself
        with pytest.raises(StreamError, match="the server is closed and takes no more requests"):
            server.submit_async((1, 2, 3), GREEDY)
        rest, error = await read_until_error(streams[1])
        (of_first, of_waiting) = await asyncio.gather(*reading)
        return [of_first, (first + rest, error), of_waiting]

    with serving(engine, stream_interval=stream_interval) as server:
        told = asyncio.run(close(server))
    for (token_ids, error), prompt in zip(told, prompts, strict=True):
        assert token_ids == tokens_alone(prompt, LONG)[: len(token_ids)]
        message = f"the server was closed when this request had {len(token_ids)} token"
        assert str(error).startswith(message) and error.__cause__ is None
    assert [stream_interval <= len(token_ids) < 50 for token_ids, _ in told] == [True, True, False]
    assert engine.stats().counters.finished == {"cancelled": 3}


def test_another_thread_may_close_the_server():
    engine = make_engine()

    async def read_on(server):
        hold(server)
        stream = server.submit_async((1, 2, 3), LONG)
        first = await anext(stream)
        closing = start(server.close)
        rest, error = await read_until_error(stream)
        closing.result(TIMEOUT)
        return first.token_ids + rest, str(error)

    with serving(engine) as server:
        token_ids, error = asyncio.run(read_on(server))
    assert 0 < len(token_ids) < 50 and token_ids == tokens_alone((1, 2, 3), LONG)[: len(token_ids)]
    assert f"the server was closed when this request had {len(token_ids)} token" in error


@pytest.mark.slow
def test_a_server_that_nobody_holds_is_closed_but_a_stream_holds_it():
    engine = make_engine()

    async def read_to_the_end():
        stream = StreamingServer(engine, tokenize_workers=1).submit_async("ab", GREEDY)
        gc.collect()
        return await read(stream)

    assert tokens_in(asyncio.run(read_to_the_end())) == tokens_alone((97, 98), GREEDY)
    gc.collect()
    wait_for(lambda: not labkit_threads())
    assert_no_block_is_lost(engine)
