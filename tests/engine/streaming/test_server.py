"""The server: in which order requests go, which are refused, and how streams end when it is closed."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from itertools import count

import async_helpers
import pytest
from helpers import GREEDY, Boom, assert_no_block_is_lost, failing, make_engine, tokens_alone
from streaming_helpers import (
    LONG,
    TIMEOUT,
    Gate,
    hold,
    labkit_threads,
    read,
    read_until_error,
    serving,
    start,
    tokens_in,
    wait_for,
)
from traced import at_lines

from labkit import SamplingParams
from labkit.engine import StreamingServer
from labkit.engine.streaming import worker
from labkit.engine.streaming.worker import Worker
from labkit.errors import OptionError, OverloadedError, RequestError, StreamError
from labkit.paths import ROOT

# --- tokens ----------------------------------------------------------------------------------------


def test_submitted_is_before_tokenizing(monkeypatch):
    engine, moments = make_engine(), []
    check_prompt = engine.check_prompt

    def noting(*args):
        moments.append(time.perf_counter())
        return check_prompt(*args)

    monkeypatch.setattr(engine, "check_prompt", noting)
    with serving(engine) as server:
        before = time.perf_counter()
        stream = server.submit("To be", GREEDY)
        timing = read(stream)[-1].completion.timing
    assert before <= stream.submitted <= moments[0] <= timing.arrived


# --- requests that are refused ---------------------------------------------------------------------


def test_text_that_others_tokenize_is_refused_by_the_stream(submit_to):
    with serving(tokenize_workers=2, max_inflight_requests=1) as server:
        submit = submit_to(server)
        stream = submit("x" * 60, GREEDY)
        for _ in range(2):
            with pytest.raises(RequestError, match="60 tokens and max_new_tokens is 8"):
                next(stream)
        with pytest.raises(RequestError, match="not in the vocabulary"):  # ids need no tokenizing
            submit((256,), GREEDY)
        assert tokens_in(read(submit("ab", GREEDY))) == tokens_alone((97, 98), GREEDY)


def test_a_text_for_which_no_thread_can_be_started_takes_no_room(monkeypatch):
    with serving(tokenize_workers=1, max_inflight_requests=1) as server:
        with monkeypatch.context() as patched, pytest.raises(Boom):
            patched.setattr(threading.Thread, "start", failing(threading.Thread.start))
            server.submit("ab", GREEDY)
        assert tokens_in(read(server.submit("ab", GREEDY))) == tokens_alone((97, 98), GREEDY)


def test_when_there_are_too_many_unfinished_requests_submit_refuses(submit_to):
    engine = make_engine()
    gate = Gate(engine)
    with serving(engine, max_inflight_requests=2) as server:
        submit = submit_to(server)
        first, second = gate.submit_all(submit, [(1, 2, 3), (5, 6)], [SamplingParams(1), LONG])
        message = "2 requests are unfinished and max_inflight_requests is 2; submit again when one has ended"
        for _ in range(2):
            with pytest.raises(OverloadedError, match=message):
                submit((7,), GREEDY)
        gate.allow(3)
        assert len(read(first)) == 1
        third = submit((7,), GREEDY)  # at once: whoever has the last chunk finds room
        with pytest.raises(OverloadedError):
            submit((7,), GREEDY)
        second.close()
        gate.allow()
        assert tokens_in(read(third)) == tokens_alone((7,), GREEDY)
        submit((7,), GREEDY)
        submit((7,), GREEDY)
    assert engine.stats().counters.finished["cancelled"] >= 1


def test_room_is_given_back_before_the_last_chunk_is(monkeypatch):
    """So whoever has it can submit again, however fast."""
    with serving() as server:
        worker, counts = server.worker, []
        send = worker._send

        def spy(submission, item):
            counts.append(submission in worker._unfinished)
            send(submission, item)

        monkeypatch.setattr(worker, "_send", spy)
        read(server.submit((1, 2, 3), SamplingParams(3)))
    assert counts == [True, True, False]


def test_a_request_that_the_engine_refuses_after_all_fails_alone(submit_to, monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine, "add_request", failing(engine.add_request))
    with serving(engine, max_inflight_requests=1) as server:
        submit = submit_to(server)
        with pytest.raises(Boom):
            next(submit((1, 2, 3), GREEDY))
        assert tokens_in(read(submit((5, 6), GREEDY))) == tokens_alone((5, 6), GREEDY)


def test_a_server_whose_engine_breaks_as_a_request_is_queued_serves_no_more(monkeypatch):
    engine = make_engine()

    def breaks(request):
        with engine.guard.bookkeeping:
            raise Boom

    monkeypatch.setattr(engine, "_enqueue", breaks)
    with StreamingServer(engine) as server:
        for error in (Boom, StreamError):
            with pytest.raises(error):
                list(server.submit((1, 2, 3), GREEDY))


def test_an_engine_with_requests_of_its_own_is_refused_also_if_they_come_as_the_server_starts(monkeypatch):
    engine, start_worker = make_engine(), Worker.start

    def queue_and_start(worker):
        engine.add_request((1, 2, 3), GREEDY)
        start_worker(worker)

    monkeypatch.setattr(Worker, "start", queue_and_start)
    with pytest.raises(OptionError, match="unfinished requests"):
        StreamingServer(engine)


# --- the server's end ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 4])
def test_closing_the_server_ends_each_stream_with_an_error_after_what_it_has(submit_to, stream_interval):
    engine = make_engine(max_batch_size=2)
    prompts = [(1, 2, 3), (5, 6), (7,)]  # the third still waits
    with serving(engine, stream_interval=stream_interval) as server:
        gate = Gate(engine)
        streams = gate.submit_all(submit_to(server), prompts, [LONG] * 3)
        hold(server)
        gate.allow()
        wait_for(lambda: engine.stats().waiting == 1)  # the engine has them all
        reading = [start(read_until_error, streams[i]) for i in (0, 2)]
        first = next(streams[1]).token_ids
    rest, error = read_until_error(streams[1])  # what it had is there still
    told = [each.result(TIMEOUT) for each in reading]
    told.insert(1, (first + rest, error))
    for (token_ids, error), prompt in zip(told, prompts, strict=True):
        assert token_ids == tokens_alone(prompt, LONG)[: len(token_ids)]
        message = f"the server was closed when this request had {len(token_ids)} token"
        assert str(error).startswith(message) and error.__cause__ is None
    assert [0 < len(token_ids) < 50 for token_ids, _ in told] == [True, True, False]
    assert len(first) == stream_interval
    counters = engine.stats().counters
    assert sum(len(token_ids) for token_ids, _ in told) == counters.generated_tokens  # not one is lost
    assert counters.finished == {"cancelled": 3}


def test_closing_the_server_ends_streams_that_are_still_tokenized(monkeypatch):
    """What waits for its turn to be tokenized is not: it would hold up the end."""
    engine, begun, go_on = make_engine(), [], threading.Event()

    def check_prompt(*args):
        begun.append(args)
        go_on.wait(TIMEOUT)

    def shut_down(**how):
        shutdown(wait=False, **how)
        go_on.set()
        shutdown()

    monkeypatch.setattr(engine, "check_prompt", check_prompt)
    with serving(engine, tokenize_workers=1) as server:
        shutdown = server._pool.shutdown
        monkeypatch.setattr(server._pool, "shutdown", shut_down)
        streams = [server.submit("To be", GREEDY) for _ in range(3)]
        wait_for(lambda: begun)
        closing = start(server.close)
        told = [start(read_until_error, stream).result(TIMEOUT) for stream in streams]
        closing.result(TIMEOUT)
        assert len(begun) == 1
    assert all(t == () and "the server was closed" in str(e) for t, e in told)


def test_a_close_that_was_interrupted_can_be_called_again():
    def interrupt():
        raise KeyboardInterrupt

    server = StreamingServer(make_engine())
    with pytest.raises(KeyboardInterrupt), at_lines([1], interrupt, within=worker.__file__):
        server.close()
    server.close()
    assert labkit_threads() == []


@pytest.mark.slow
def test_a_server_that_nobody_holds_is_closed_but_a_stream_holds_it(submit_to):
    engine = make_engine()
    stream = submit_to(StreamingServer(engine, tokenize_workers=1))("ab", GREEDY)
    gc.collect()
    assert tokens_in(read(stream)) == tokens_alone((97, 98), GREEDY)
    del stream
    gc.collect()
    wait_for(lambda: not labkit_threads())
    assert_no_block_is_lost(engine)


@pytest.mark.slow
def test_a_server_that_was_not_closed_does_not_keep_python_from_exiting():
    script = (
        "from helpers import make_engine; from labkit import SamplingParams;"
        "from labkit.engine import StreamingServer;"
        "server = StreamingServer(make_engine(), tokenize_workers=1);"
        "stream = server.submit('ab', SamplingParams(50)); print(len(next(stream).token_ids))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": "tests/support"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


def test_an_end_that_a_failed_step_has_left_is_handed_out_when_the_server_is_closed_then(monkeypatch):
    """And the engine can be used again."""
    engine = make_engine(decode_first=True, prefill_max_batch_size=1)
    gate, calls, inside, go_on = Gate(engine), count(1), threading.Event(), threading.Event()
    launch = engine.prefill.launch

    def fails(*args):
        if engine.scheduler.waiting and next(calls) == 3:  # behind the decode step that ends `first`
            inside.set()
            assert go_on.wait(TIMEOUT)
            raise Boom
        return launch(*args)

    monkeypatch.setattr(engine.prefill, "launch", fails)
    server = StreamingServer(engine)
    first, *others = gate.submit_all(server.submit, [(1, 2), (3,), (4,)], [SamplingParams(3), LONG, LONG])
    gate.allow()
    assert inside.wait(TIMEOUT)
    closing = start(server.close)
    wait_for(lambda: server.worker.quitting)
    go_on.set()
    closing.result(TIMEOUT)
    assert tokens_in(list(first)) == tokens_alone((1, 2), SamplingParams(3))
    for other in others:
        with pytest.raises(StreamError):
            list(other)
    assert not engine.has_work
    with StreamingServer(engine) as again:
        assert tokens_in(list(again.submit((5,), GREEDY))) == tokens_alone((5,), GREEDY)


# --- on an event loop ------------------------------------------------------------------------------


def test_a_task_may_close_its_own_server():
    async def close(server):
        hold(server)
        stream = server.submit_async((1, 2, 3), LONG)
        await anext(stream)
        server.close()
        with pytest.raises(StreamError, match="the server was closed when this request had"):
            await async_helpers.read(stream)
        with pytest.raises(StreamError, match="the server is closed and takes no more requests"):
            server.submit_async((1, 2, 3), GREEDY)

    with serving() as server:
        asyncio.run(close(server))
    assert server.engine.stats().counters.finished == {"cancelled": 1}
