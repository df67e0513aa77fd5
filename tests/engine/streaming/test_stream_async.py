"""Streams on an event loop: each task gets its own tokens, and a task that leaves cancels its request."""

import asyncio
import gc
from contextlib import nullcontext
from itertools import count

import pytest
from async_helpers import read, submit_and_read_all
from helpers import GREEDY, SEEDED, make_engine, tokens_alone
from streaming_helpers import EACH_PARAMS, EXPECTED, LONG, PROMPTS, Gate, serving, tokens_in

from labkit.errors import StreamError

# --- consumers that are slow ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [500, 5])
def test_what_has_come_meanwhile_can_be_taken_at_once_and_nothing_is_lost(num_steps):
    """Nor is it when the step after num_steps fails."""
    engine = make_engine()
    step, calls = engine.step, count()
    engine.step = lambda: step() if next(calls) < num_steps else 1 / 0
    expected = tokens_alone((1, 2, 3), GREEDY)[:num_steps]

    async def read_all(stream, chunks):
        with nullcontext() if num_steps > 8 else pytest.raises(StreamError, match="a step of the engine"):
            async for chunk in stream:
                chunks.append(chunk)
        assert tokens_in(chunks) == expected

    async def catch_up(server):
        slow, quick = (server.submit_async((1, 2, 3), GREEDY) for _ in range(2))
        await read_all(quick, [])
        chunks = [await anext(slow)]
        while chunk := slow.take_waiting():
            chunks.append(chunk)
        assert len(chunks) > 2
        await read_all(slow, chunks)
        assert slow.take_waiting() is None

    with serving(engine) as server:
        asyncio.run(catch_up(server))


# --- consumers that go away ------------------------------------------------------------------------


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
@pytest.mark.parametrize("leave", [by_cancelling_its_task, by_timeout])
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
