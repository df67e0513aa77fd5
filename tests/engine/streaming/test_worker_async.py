"""The worker and event loops: one delivery per step, steps that fail, and which thread does what."""

import asyncio
import threading

import pytest
from async_helpers import read, submit_and_read_all
from helpers import make_engine, tokens_alone
from streaming_helpers import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PROMPTS,
    TIMEOUT,
    Gate,
    serving,
    start,
    tokens_in,
)

from labkit import SamplingParams
from labkit.engine.streaming import worker as streaming_worker

# --- tokens ----------------------------------------------------------------------------------------


def test_two_loops_and_threads_are_served_at_once():
    def read_by_thread(server, prompt, params):
        return tokens_in(list(server.submit(prompt, params)))

    with serving() as server:
        loops = [
            start(lambda: asyncio.run(submit_and_read_all(server, PROMPTS, EACH_PARAMS))) for _ in range(2)
        ]
        threads = [start(read_by_thread, server, *each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
        for loop in loops:
            assert [tokens_in(chunks) for chunks in loop.result(TIMEOUT)] == EXPECTED
        assert [thread.result(TIMEOUT) for thread in threads] == EXPECTED
    assert server.engine.stats().counters.finished == {"length": 18}


@pytest.mark.parametrize(("stream_interval", "sizes"), [(1, [1, 2] + [3] * 8), (4, [3, 3, 3])])
def test_a_loop_is_woken_once_a_step_with_all_its_tokens(stream_interval, sizes):
    engine = make_engine()
    gate = Gate(engine)

    async def count_deliveries(server):
        loop, delivered = asyncio.get_running_loop(), []
        call = loop.call_soon_threadsafe

        def noting(function, items):
            delivered.append(len(items))
            return call(function, items)

        loop.call_soon_threadsafe = noting
        prompts = [(1, 2, 3), (5, 6), (7,)]
        streams = gate.submit_all(server.submit_async, prompts, [SamplingParams(9)] * 3)
        gate.allow()
        read_by_each = await asyncio.gather(*map(read, streams))
        assert [tokens_in(chunks) for chunks in read_by_each] == [
            tokens_alone(prompt, SamplingParams(9)) for prompt in prompts
        ]
        return delivered

    with serving(engine, stream_interval=stream_interval) as server:
        delivered = asyncio.run(count_deliveries(server))
    if stream_interval == 1:
        assert len(delivered) == engine.stats().counters.steps
    assert delivered == sizes


def test_a_loop_that_is_busy_holds_nobody_up_and_gets_its_tokens_later():
    with serving() as server:

        async def block():
            stream = server.submit_async((1, 2, 3), LONG)
            for _ in range(2):  # no task of this loop runs meanwhile
                assert tokens_in(list(server.submit((5, 6), LONG))) == tokens_alone((5, 6), LONG)
            return await read(stream)

        chunks = asyncio.run(block())
    assert tokens_in(chunks) == tokens_alone((1, 2, 3), LONG)
    assert [len(chunk.token_ids) for chunk in chunks] == [1] * 50


# --- threads ---------------------------------------------------------------------------------------


def test_queues_are_filled_in_the_loops_thread(monkeypatch):
    seen = set()
    put_each = streaming_worker.put_each

    def noting(items):
        seen.add(threading.get_ident())
        put_each(items)

    monkeypatch.setattr(streaming_worker, "put_each", noting)
    with serving() as server:
        asyncio.run(submit_and_read_all(server, PROMPTS, EACH_PARAMS))
    assert seen == {threading.get_ident()}
