"""Streams on an event loop: each task gets its own tokens, one delivery a step, and nobody hangs."""

import asyncio
import gc
import random
import threading
import time

import pytest
from helpers import (
    GREEDY,
    SEEDED,
    Boom,
    assert_no_block_is_lost,
    failing,
    make_engine,
    tokens_alone,
    tokens_of,
)
from streaming_helpers import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PROMPTS,
    TIMEOUT,
    Gate,
    cpu_seconds,
    hold,
    labkit_threads,
    nobody_waits_for_ever,  # noqa: F401
    serving,
    start,
    tokens_in,
    wait_for,
)

from labkit import SamplingParams
from labkit.engine import StreamingServer
from labkit.engine.streaming import worker as streaming_worker
from labkit.errors import OverloadedError, RequestError, StreamError


async def read(stream):
    return [chunk async for chunk in stream]


async def read_until_error(stream):
    """The tokens of a stream that is cut short, and its error."""
    token_ids = ()
    with pytest.raises((StreamError, RequestError)) as caught:
        async for chunk in stream:
            assert chunk.completion is None
            token_ids += chunk.token_ids
    return token_ids, caught.value


async def submit_and_read_all(server, prompts, each_params):
    """Their chunks, all read at once on one event loop."""
    streams = [server.submit_async(*each) for each in zip(prompts, each_params, strict=True)]
    return await asyncio.gather(*map(read, streams))


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


# --- steps that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 3])
def test_when_a_step_fails_each_task_is_told_after_its_tokens(monkeypatch, stream_interval):
    engine = make_engine(prefix_cache=False)
    step = engine.decode_step
    monkeypatch.setattr(step, "decode_step_sessions", failing(step.decode_step_sessions, 1))
    gate = Gate(engine)
    prompts = [(1, 2, 3), (5, 6), (7,)]

    async def read_all(server):
        streams = gate.submit_all(server.submit_async, prompts, [LONG] * 3)
        gate.allow()  # two prefills, a decode step, and one that fails
        told = await asyncio.gather(*map(read_until_error, streams))
        for stream, (_, error) in zip(streams, told, strict=True):  # it is no end, however often one asks
            with pytest.raises(StreamError) as again:
                await anext(stream)
            assert again.value is error
        return told, await read(server.submit_async((1, 2, 3), LONG))

    with serving(engine, stream_interval=stream_interval, max_inflight_requests=3) as server:
        told, chunks = asyncio.run(read_all(server))
    for prompt, (token_ids, error) in zip(prompts, told, strict=True):
        assert token_ids == tokens_alone(prompt, LONG)[:2]
        assert str(error) == "a step of the engine failed when this request had 2 tokens: Boom()"
        assert isinstance(error.__cause__, Boom)
    assert tokens_in(chunks) == tokens_alone((1, 2, 3), LONG)
    assert engine.stats().counters.finished == {"cancelled": 3, "length": 1}


def test_when_not_even_cancelling_works_no_task_is_left_waiting(monkeypatch):
    def broken(request_id):
        raise ZeroDivisionError

    engine = make_engine()
    prompts = [(1, 2, 3), (5, 6)]
    gate = Gate(engine)

    async def read_all(server):
        streams = gate.submit_all(server.submit_async, prompts, [LONG] * 2)
        monkeypatch.setattr(engine, "cancel", broken)
        monkeypatch.setattr(engine.decode_step, "decode_step_sessions", failing(print))
        gate.allow()
        return await asyncio.gather(*map(read_until_error, streams))

    with serving(engine) as server:
        for prompt, (token_ids, error) in zip(prompts, asyncio.run(read_all(server)), strict=True):
            assert token_ids == tokens_alone(prompt, LONG)[:1]
            assert str(error) == "the server broke down when this request had 1 token: ZeroDivisionError()"
        monkeypatch.undo()
        wait_for(lambda: not labkit_threads())  # then the engine is anybody's again
        for request_id in (0, 1):
            engine.cancel(request_id)


# --- the server's end ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 4])
def test_closing_the_server_ends_each_stream_with_an_error_after_what_it_has(stream_interval):
    engine = make_engine(max_batch_size=2)
    prompts = [(1, 2, 3), (5, 6), (7,)]  # the third still waits

    async def close(server):
        hold(server)
        streams = [server.submit_async(prompt, LONG) for prompt in prompts]
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


def test_a_worker_with_nothing_to_do_sleeps():
    with serving() as server:
        asyncio.run(submit_and_read_all(server, PROMPTS, EACH_PARAMS))
        steps, cpu = server.engine.stats().counters.steps, cpu_seconds(server._worker.thread)
        time.sleep(0.2)
        assert cpu_seconds(server._worker.thread) - cpu < 0.1
        assert server.engine.stats().counters.steps == steps


def test_many_tasks_submit_read_and_leave_at_random():
    engine = make_engine(max_batch_size=4, max_blocks_per_layer=14, decode_first=True)

    async def client(server, number):
        dice = random.Random(number)
        for _ in range(8):
            which = dice.randrange(len(PROMPTS))
            try:
                stream = server.submit_async(PROMPTS[which], EACH_PARAMS[which])
            except OverloadedError:
                await asyncio.sleep(0.002)
                continue
            leaves_after = dice.choice([0, 1, 3, 99])
            received = ()
            while leaves_after and (chunk := await anext(stream, None)):
                received += chunk.token_ids
                leaves_after -= 1
            assert received == EXPECTED[which][: len(received)]
            assert leaves_after < 50 or received == EXPECTED[which]
            if dice.random() < 0.5:
                stream.close()

    async def all_clients(server):
        await asyncio.gather(*(client(server, number) for number in range(8)))

    with serving(engine, max_inflight_requests=6, stream_interval=2) as server:
        asyncio.run(all_clients(server))
        wait_for(lambda: not server._worker._unfinished)
        wait_for(lambda: not engine.has_work)
        assert sum(engine.stats().counters.finished.values()) > 8
