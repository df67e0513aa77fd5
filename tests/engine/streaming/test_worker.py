"""The worker: it sleeps, it alone touches the engine, it survives steps that fail and floods of requests."""

import random
import threading
import time
from concurrent.futures import Future
from itertools import pairwise

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
from labkit.errors import OverloadedError, StreamError

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


def test_only_one_thread_touches_the_engine(monkeypatch):
    engine, seen = make_engine(), set()

    def noting(function):
        def wrapper(*args):
            seen.add(threading.current_thread().name)
            return function(*args)

        return wrapper

    for name in ("add_request", "step", "cancel"):
        monkeypatch.setattr(engine, name, noting(getattr(engine, name)))
    with serving(engine, tokenize_workers=2) as server:
        streams = [server.submit(prompt, LONG) for prompt in ["To be", (1, 2), "or", (3, 4)]]
        next(streams[0])
        streams[0].close()
        read(streams[1])
    assert seen == {"labkit-streaming"}


def test_many_submit_read_and_leave_at_random(submit_to):
    engine = make_engine(max_batch_size=4, max_blocks_per_layer=14, decode_first=True)

    def client(number):
        dice = random.Random(number)
        for _ in range(8):
            which = dice.randrange(len(PROMPTS))
            try:
                stream = submit(PROMPTS[which], EACH_PARAMS[which])
            except OverloadedError:
                time.sleep(0.002)
                continue
            leaves_after = dice.choice([0, 1, 3, 99])
            received = ()
            for _, chunk in zip(range(leaves_after), stream, strict=False):
                received += chunk.token_ids
            assert received == EXPECTED[which][: len(received)]
            assert leaves_after < 99 or received == EXPECTED[which]
            if dice.random() < 0.5:
                stream.close()

    with serving(engine, max_inflight_requests=6, stream_interval=2) as server:
        submit = submit_to(server)
        for each in [start(client, number) for number in range(8)]:
            each.result(TIMEOUT)
        wait_for(lambda: not server.worker._unfinished)
        wait_for(lambda: not engine.has_work)
        stats = engine.stats()
        assert (stats.waiting, stats.running) == (0, 0)
        assert sum(stats.counters.finished.values()) > 8


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
