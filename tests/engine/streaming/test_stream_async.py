"""Streams on an event loop: each task gets its own tokens, and a task that leaves cancels its request."""

import asyncio
import gc

import pytest
from async_helpers import read, submit_and_read_all
from helpers import GREEDY, SEEDED, make_engine, tokens_alone, tokens_of
from streaming_helpers import EACH_PARAMS, EXPECTED, LONG, PROMPTS, Gate, serving, tokens_in

from labkit.errors import StreamError

# --- tokens ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tokenize_workers", [0, 2])
@pytest.mark.parametrize("stream_interval", [1, 3])
@pytest.mark.parametrize("decode_first", [False, True])
def test_each_task_gets_the_tokens_of_its_own_request(decode_first, stream_interval, tokenize_workers):
    engine = make_engine(decode_first=decode_first, max_batch_size=4, max_blocks_per_layer=12)
    prompts = [bytes(prompt).decode() for prompt in PROMPTS] if tokenize_workers else PROMPTS
    with serving(engine, stream_interval=stream_interval, tokenize_workers=tokenize_workers) as server:
        read_by_each = asyncio.run(submit_and_read_all(server, prompts * 3, EACH_PARAMS * 3))
    for chunks, expected, prompt in zip(read_by_each, EXPECTED * 3, PROMPTS * 3, strict=True):
        *others, last = chunks
        assert tokens_in(chunks) == last.completion.token_ids == expected
        assert "".join(chunk.text for chunk in chunks) == last.completion.text
        assert last.completion.prompt_token_ids == prompt
        assert {len(chunk.token_ids) for chunk in others} <= {stream_interval}
        assert all(chunk.completion is None for chunk in others)
    assert engine.stats().counters.finished == {"length": 18}


@pytest.mark.slow
def test_the_tokens_are_those_of_generate():
    prompts = ["To be", "or not", "to be"]
    generated = tokens_of(make_engine().generate(prompts, SEEDED))
    with serving() as server:
        read_by_each = asyncio.run(submit_and_read_all(server, prompts, [SEEDED] * 3))
    assert [tokens_in(chunks) for chunks in read_by_each] == generated


def test_many_streams_on_one_loop():
    with serving(make_engine(max_batch_size=32)) as server:
        read_by_each = asyncio.run(submit_and_read_all(server, PROMPTS * 20, EACH_PARAMS * 20))
    assert [tokens_in(chunks) for chunks in read_by_each] == EXPECTED * 20


# --- consumers that go away ------------------------------------------------------------------------


async def by_close(streams):
    stream = streams.pop()
    await anext(stream)
    stream.close()
    assert await read(stream) == []
    stream.close()


async def by_with(streams):
    with pytest.raises(ZeroDivisionError):
        async with streams[0] as stream:
            await anext(stream)
            raise ZeroDivisionError
    assert await read(stream) == []


async def by_leaving_the_loop(streams):
    async for chunk in streams.pop():
        assert len(chunk.token_ids) == 1
        break


async def by_garbage_collection(streams):
    await anext(streams[0])
    streams.append(streams)


async def before_the_first_token(streams):
    streams.clear()


async def by_cancelling_its_task(streams):
    reading = asyncio.create_task(read(streams[0]))
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await read(streams[0]) == []  # closed, although somebody holds it still


async def by_timeout(streams):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await read(streams[0])
    assert await read(streams[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave",
    [
        *(by_close, by_with, by_leaving_the_loop, by_garbage_collection, before_the_first_token),
        *(by_cancelling_its_task, by_timeout),
    ],
)
def test_a_consumer_that_leaves_cancels_its_request_and_no_other(leave):
    engine = make_engine(prefix_cache=False)
    gate = Gate(engine)

    async def leave_and_go_on(server):
        first, *streams = gate.submit_all(server.submit_async, [(5, 6), (1, 2, 3)], [GREEDY, LONG])
        gate.allow(3)  # two prefills and a decode step
        await leave(streams)
        del streams
        gc.collect()
        second = server.submit_async((7, 8), SEEDED)
        gate.allow()
        assert tokens_in(await read(first)) == tokens_alone((5, 6), GREEDY)
        assert tokens_in(await read(second)) == tokens_alone((7, 8), SEEDED)

    with serving(engine) as server:
        asyncio.run(leave_and_go_on(server))
        stats = engine.stats()
        assert stats.counters.finished == {"cancelled": 1, "length": 2}
        assert stats.free_blocks == stats.blocks_per_layer
    engine.check_integrity()


def test_closing_a_stream_wakes_the_task_that_waits():
    engine = make_engine()
    gate = Gate(engine)

    async def close(server):
        stream = server.submit_async((1, 2, 3), LONG)
        reading = asyncio.create_task(read(stream))
        await asyncio.sleep(0.01)
        stream.close()
        assert await reading == []  # before the engine has made a step

    with serving(engine) as server:
        asyncio.run(close(server))
        gate.allow()
    assert engine.stats().counters.finished == {"cancelled": 1}


def test_after_its_end_a_stream_stays_ended_and_closing_does_nothing():
    async def read_to_the_end(server):
        async with server.submit_async((1, 2, 3), GREEDY) as stream:
            assert tokens_in(await read(stream)) == tokens_alone((1, 2, 3), GREEDY)
            assert await read(stream) == []
        stream.close()
        assert await read(stream) == []
        del stream
        await read(server.submit_async((5, 6), GREEDY))  # the worker has done all that it was asked for

    with serving() as server:
        asyncio.run(read_to_the_end(server))
    assert server.engine.stats().counters.finished == {"length": 2}


def test_the_requests_of_a_loop_that_is_closed_are_cancelled_and_no_others():
    engine = make_engine()
    gate = Gate(engine)

    async def submit(server):
        return gate.submit_all(server.submit_async, [(1, 2, 3), (5, 6)], [LONG] * 2)

    with serving(engine, max_inflight_requests=3) as server:
        left = asyncio.run(submit(server))  # held, so that nothing but the loop's end can cancel them
        by_thread = server.submit((7,), LONG)
        gate.allow()
        assert tokens_in(list(by_thread)) == tokens_alone((7,), LONG)
        assert engine.stats().counters.finished == {"cancelled": 2, "length": 1}
        read_by_each = asyncio.run(submit_and_read_all(server, PROMPTS[:3], EACH_PARAMS[:3]))  # there is room
        assert [tokens_in(chunks) for chunks in read_by_each] == EXPECTED[:3]
        for stream in left:
            with pytest.raises(StreamError, match="submitted on another event loop"):
                asyncio.run(read(stream))


def test_a_loop_that_closes_among_others_costs_them_no_token():
    engine = make_engine()
    gate = Gate(engine)
    closed = asyncio.new_event_loop()

    async def submit(server):
        return server.submit_async((1, 2, 3), LONG)

    async def read_on(server):
        stream = server.submit_async((5, 6), LONG)
        gate.allow(4)
        first = await anext(stream)
        closed.close()
        gate.allow()
        return [first, *await read(stream)]

    with serving(engine) as server:
        left = closed.run_until_complete(submit(server))
        chunks = asyncio.run(read_on(server))
        left.close()  # does no harm
    assert tokens_in(chunks) == tokens_alone((5, 6), LONG)
    assert engine.stats().counters.finished == {"cancelled": 1, "length": 1}
