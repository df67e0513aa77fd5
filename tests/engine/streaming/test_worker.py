"""The worker: it sleeps, it alone touches the engine, it survives steps that fail and floods of requests."""

import asyncio
import threading
import time
from concurrent.futures import Future
from itertools import pairwise

import async_helpers
import pytest
from helpers import GREEDY, Boom, assert_no_block_is_lost, failing, make_engine, tokens_alone
from streaming_helpers import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PROMPTS,
    TIMEOUT,
    Gate,
    cpu_seconds,
    labkit_threads,
    read,
    read_until_error,
    serving,
    start,
    tokens_in,
    wait_for,
)

from labkit import SamplingParams
from labkit.engine import StreamingServer
from labkit.engine import prefill as prefill_module
from labkit.engine import request as request_module
from labkit.engine.streaming import worker as streaming_worker
from labkit.errors import StreamError

# --- steps that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 3])
def test_when_a_step_fails_each_consumer_is_told_and_the_next_request_is_served(
    submit_to, monkeypatch, stream_interval
):
    engine = make_engine(prefix_cache=False)
    monkeypatch.setattr(
        engine.decode_step, "decode_step_sessions", failing(engine.decode_step.decode_step_sessions, 1)
    )
    gate = Gate(engine)
    with serving(engine, stream_interval=stream_interval, max_inflight_requests=3) as server:
        submit = submit_to(server)
        prompts = [(1, 2, 3), (5, 6), (7,)]
        streams = gate.submit_all(submit, prompts, [LONG] * 3)
        reading = [start(read_until_error, stream) for stream in streams]
        gate.allow()  # two prefills, a decode step, and one that fails
        for prompt, each in zip(prompts, reading, strict=True):
            token_ids, error = each.result(TIMEOUT)
            assert token_ids == tokens_alone(prompt, LONG)[:2]
            assert str(error) == "a step of the engine failed when this request had 2 tokens: Boom()"
            assert isinstance(error.__cause__, Boom)
        for stream in streams:  # it is no end, however often one asks
            with pytest.raises(StreamError):
                list(stream)
        stats = engine.stats()
        assert stats.counters.finished == {"cancelled": 3}
        assert stats.free_blocks == stats.blocks_per_layer
        assert tokens_in(read(submit((1, 2, 3), LONG))) == tokens_alone((1, 2, 3), LONG)


def test_what_ended_in_a_step_that_failed_has_ended_well(monkeypatch):
    engine = make_engine(decode_first=True, prefill_max_batch_size=1)
    monkeypatch.setattr(prefill_module, "prefill_sessions", failing(prefill_module.prefill_sessions, 2))
    gate = Gate(engine)
    with serving(engine) as server:
        done, running, new = (
            server.submit(p, SamplingParams(n)) for p, n in [((1, 2), 3), ((3,), 9), ((4,), 9)]
        )
        gate.allow()  # the third step decodes two and then fails to prefill
        assert tokens_in(read(done)) == tokens_alone((1, 2), SamplingParams(3))
        token_ids, error = read_until_error(running)
        assert token_ids == tokens_alone((3,), SamplingParams(2)) and "2 tokens" in str(error)
        token_ids, error = read_until_error(new)
        assert token_ids == () and "0 tokens" in str(error)
    assert engine.stats().counters.finished == {"length": 1, "cancelled": 2}


@pytest.mark.parametrize("stream_interval", [1, 3])
def test_when_not_even_cancelling_works_nobody_is_left_waiting(submit_to, monkeypatch, stream_interval):
    def broken(request_id):
        raise ZeroDivisionError

    engine = make_engine()
    monkeypatch.setattr(engine, "cancel", broken)
    monkeypatch.setattr(request_module, "sample", failing(request_module.sample, 3))
    gate = Gate(engine)
    with serving(engine, stream_interval=stream_interval) as server:
        submit = submit_to(server)
        prompts = [(1, 2, 3), (5, 6)]
        streams = gate.submit_all(submit, prompts, [LONG] * 2)
        gate.allow()
        for stream, prompt in zip(streams, prompts, strict=True):
            token_ids, error = read_until_error(stream)
            assert token_ids == tokens_alone(prompt, LONG)[:2]
            assert str(error) == "the server broke down when this request had 2 tokens: ZeroDivisionError()"
            assert isinstance(error.__cause__.__context__, Boom)  # what began it
        with pytest.raises(StreamError, match="the server is closed"):
            submit((1, 2, 3), GREEDY)
        monkeypatch.undo()
        wait_for(lambda: not labkit_threads())  # then the engine is anybody's again
        for request_id in (0, 1):
            engine.cancel(request_id)


# --- the worker ------------------------------------------------------------------------------------


def test_a_worker_with_nothing_to_do_sleeps():
    with serving() as server:
        read(server.submit((1, 2, 3), GREEDY))
        steps, cpu = server.engine.stats().counters.steps, cpu_seconds(server.worker.thread)
        time.sleep(0.2)
        assert cpu_seconds(server.worker.thread) - cpu < 0.1
        assert server.engine.stats().counters.steps == steps


# --- a flood ---------------------------------------------------------------------------------------------


def test_between_two_steps_only_so_much_of_a_flood_is_taken(monkeypatch):
    engine = make_engine()
    taken, seen = [], []
    step = engine.step

    def noting_step():
        seen.append(len(taken))
        if len(seen) == 1:
            for _ in range(1000):
                server.worker.ask(lambda _: taken.append(None))
        return step()

    monkeypatch.setattr(engine, "step", noting_step)
    with serving(engine) as server:
        assert tokens_in(read(server.submit((1, 2, 3), LONG))) == tokens_alone((1, 2, 3), LONG)
    taken_between = [after - before for before, after in pairwise(seen)]
    assert taken_between[:5] == [256, 256, 256, 232, 0]


def test_a_server_that_is_closed_does_not_take_the_rest_of_a_flood(monkeypatch):
    engine = make_engine()
    taken, closing = [], []
    step = engine.step

    def flooded_step():
        for _ in range(10_000):
            server.worker.ask(lambda _: taken.append(None))
        closing.append(start(server.close))
        wait_for(lambda: server.worker.quitting)
        return step()

    monkeypatch.setattr(engine, "step", flooded_step)
    server = StreamingServer(engine)
    with pytest.raises(StreamError, match="the server was closed"):
        read(server.submit((1, 2, 3), LONG))
    closing[0].result()
    assert taken == []
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("after", ["starting", "serving"])
def test_an_interrupt_while_a_server_is_made_leaves_the_engine_to_others(monkeypatch, after):
    class Interrupted(Future):
        def result(self, timeout=None):
            if after == "serving":
                super().result()
            raise KeyboardInterrupt

    engine = make_engine()
    monkeypatch.setattr(streaming_worker, "Future", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        StreamingServer(engine)
    assert labkit_threads() == []
    assert engine.generate([PROMPTS[0]], EACH_PARAMS[0])[0].token_ids == EXPECTED[0]


def test_however_much_was_read_while_nobody_ran_whoever_runs_gets_tokens_beside_those_who_ask():
    with serving() as server:
        worker, is_over = server.worker, threading.Event()
        for _ in range(2 * streaming_worker.MOST_READ):
            worker.ask(lambda _: None)

        def ask_again(worker):
            if not is_over.is_set():
                worker.ask(ask_again)

        wait_for(worker._inbox.empty)
        worker.ask(ask_again)
        stream = start(list, server.submit(PROMPTS[0], EACH_PARAMS[0]))
        try:
            assert stream.result(TIMEOUT)[-1].completion.token_ids == EXPECTED[0]
        finally:
            is_over.set()


# --- on an event loop ------------------------------------------------------------------------------


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
        read_by_each = await asyncio.gather(*map(async_helpers.read, streams))
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
            return await async_helpers.read(stream)

        chunks = asyncio.run(block())
    assert tokens_in(chunks) == tokens_alone((1, 2, 3), LONG)
    assert [len(chunk.token_ids) for chunk in chunks] == [1] * 50
