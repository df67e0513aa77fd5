"""The streaming server: each consumer gets its own tokens, whatever the others do, and nobody hangs."""

import gc
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from itertools import pairwise

import pytest
import torch
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

from labkit import FinishReason, SamplingParams
from labkit.engine import StreamingServer
from labkit.engine import engine as engine_module
from labkit.engine import request as request_module
from labkit.engine.streaming import worker as streaming_worker
from labkit.errors import OptionError, OverloadedError, RequestError, StreamError
from labkit.paths import ROOT


def read(stream, pause=0.0):
    """All chunks of a stream, read at random moments."""
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        time.sleep(random.random() * pause)
    return chunks


def read_until_error(stream):
    """The tokens of a stream that is cut short, and its error."""
    token_ids = []
    with pytest.raises((StreamError, RequestError)) as caught:
        for chunk in stream:
            assert chunk.completion is None
            token_ids += chunk.token_ids
    return tuple(token_ids), caught.value


# --- tokens ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tokenize_workers", [0, 2])
@pytest.mark.parametrize("stream_interval", [1, 3])
@pytest.mark.parametrize("decode_first", [False, True])
def test_each_consumer_gets_the_tokens_of_its_own_request(decode_first, stream_interval, tokenize_workers):
    engine = make_engine(decode_first=decode_first, max_batch_size=4, max_blocks_per_layer=12)
    prompts = [bytes(prompt).decode() for prompt in PROMPTS] if tokenize_workers else PROMPTS
    with serving(engine, stream_interval=stream_interval, tokenize_workers=tokenize_workers) as server:
        streams = [server.submit(*each) for each in zip(prompts * 3, EACH_PARAMS * 3, strict=True)]
        read_by_each = [
            each.result(TIMEOUT)
            for each in [start(read, stream, 0.004 * (i % 3)) for i, stream in enumerate(streams)]
        ]
    for chunks, expected, prompt in zip(read_by_each, EXPECTED * 3, PROMPTS * 3, strict=True):
        *others, last = chunks
        assert tokens_in(chunks) == last.completion.token_ids == expected
        assert "".join(chunk.text for chunk in chunks) == last.completion.text
        assert last.completion.prompt_token_ids == prompt
        assert [len(c.token_ids) for c in others] == [stream_interval] * (
            (len(expected) - 1) // stream_interval
        )
        assert all(chunk.completion is None for chunk in others)
    assert engine.stats().counters.finished == {"length": 18}


def test_the_tokens_are_those_of_generate():
    prompts = ["To be", "or not", "to be"]
    generated = tokens_of(make_engine().generate(prompts, SEEDED))
    with serving() as server:
        streams = [server.submit(prompt, SEEDED) for prompt in prompts]
        assert [tokens_in(read(stream)) for stream in streams] == generated


@pytest.mark.parametrize(
    ("stream_interval", "texts"),
    [
        (1, ["a", "", "é", "", "", "", "🙂", "", "\ufffd"]),
        (3, ["aé", "", "🙂\ufffd"]),
        (4, ["aé", "🙂", "\ufffd"]),
        (99, ["aé🙂\ufffd"]),
    ],
)
def test_text_comes_in_whole_characters(monkeypatch, stream_interval, texts):
    script = iter("aé🙂日".encode()[:9])  # ends in the middle of the last character
    monkeypatch.setattr(request_module, "sample", lambda *_: [next(script)])
    with serving(stream_interval=stream_interval) as server:
        chunks = read(server.submit((1, 2, 3), SamplingParams(9)))
    assert [chunk.text for chunk in chunks] == texts
    assert chunks[-1].completion.text == "aé🙂\ufffd"


def test_requests_reach_the_engine_in_the_order_of_submission():
    with serving(make_engine(max_batch_size=2)) as server:
        streams = [server.submit(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
        assert [read(stream)[-1].completion.request_id for stream in streams] == [0, 1, 2, 3, 4, 5]


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


def test_a_request_that_goes_wrong_by_itself_ends_with_its_completion(monkeypatch):
    sample = request_module.sample

    def broken(logits, *args):
        if len(logits) == 2:  # they decode together
            logits[1, 3] = torch.nan
        return sample(logits, *args)

    monkeypatch.setattr(request_module, "sample", broken)
    engine = make_engine()
    gate = Gate(engine)
    with serving(engine) as server:
        good, bad = gate.submit_all(server.submit, [(1, 2, 3), (5, 6)], [LONG] * 2)
        gate.allow()
        *chunks, last = read(bad)
        assert tokens_in(chunks) == tokens_alone((5, 6), LONG)[:1] and last.token_ids == ()
        assert last.completion.finish_reason is FinishReason.ERROR
        assert last.completion.error == "the model's logits are not finite numbers"
        assert tokens_in(read(good)) == tokens_alone((1, 2, 3), LONG)


# --- consumers that go away ------------------------------------------------------------------------


def by_close(streams):
    stream = streams.pop()
    next(stream)
    stream.close()
    assert list(stream) == []
    stream.close()


def by_with(streams):
    with pytest.raises(ZeroDivisionError), streams[0] as stream:
        next(stream)
        raise ZeroDivisionError
    assert list(stream) == []


def by_leaving_the_loop(streams):
    for chunk in streams.pop():
        assert len(chunk.token_ids) == 1
        break


def by_garbage_collection(streams):
    next(streams[0])
    streams.append(streams)


def before_the_first_token(streams):
    streams.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave", [by_close, by_with, by_leaving_the_loop, by_garbage_collection, before_the_first_token]
)
def test_a_consumer_that_leaves_cancels_its_request_and_no_other(leave):
    engine = make_engine(prefix_cache=False)
    gate = Gate(engine)
    with serving(engine) as server:
        first, *streams = gate.submit_all(server.submit, [(5, 6), (1, 2, 3)], [GREEDY, LONG])
        gate.allow(3)  # two prefills and a decode step
        leave(streams)
        del streams
        gc.collect()
        second = server.submit((7, 8), SEEDED)
        gate.allow()
        assert tokens_in(read(first)) == tokens_alone((5, 6), GREEDY)
        assert tokens_in(read(second)) == tokens_alone((7, 8), SEEDED)
        stats = engine.stats()
        assert stats.counters.finished == {"cancelled": 1, "length": 2}
        assert stats.free_blocks == stats.blocks_per_layer
    engine.check_integrity()


def test_closing_a_stream_wakes_the_consumer_that_waits():
    engine = make_engine()
    gate = Gate(engine)
    with serving(engine) as server:
        stream = server.submit((1, 2, 3), LONG)
        reading = start(read, stream)
        time.sleep(0.02)
        stream.close()
        assert reading.result(TIMEOUT) == []  # before the engine has made a step
        gate.allow()
    assert engine.stats().counters.finished == {"cancelled": 1}


def test_after_its_end_a_stream_stays_ended_and_closing_does_nothing():
    with serving() as server:
        with server.submit((1, 2, 3), GREEDY) as stream:
            assert tokens_in(read(stream)) == tokens_alone((1, 2, 3), GREEDY)
            assert list(stream) == []
        stream.close()
        assert list(stream) == []
        del stream
        read(server.submit((5, 6), GREEDY))  # the worker has done all that it was asked for
    assert server.engine.stats().counters.finished == {"length": 2}


def test_a_stream_closed_while_it_is_tokenized_never_reaches_the_engine(monkeypatch):
    engine = make_engine()
    check_prompt, go_on = engine.check_prompt, threading.Event()
    monkeypatch.setattr(engine, "check_prompt", lambda *args: (go_on.wait(TIMEOUT), check_prompt(*args))[1])
    with serving(engine, tokenize_workers=1, max_inflight_requests=1) as server:
        server.submit("To be", LONG).close()
        wait_for(lambda: not server._worker._unfinished)  # there is room again before the tokens are ready
        stream = server.submit("or not", GREEDY)
        go_on.set()
        (completion,) = [chunk.completion for chunk in read(stream) if chunk.completion]
    assert completion.request_id == 0
    assert engine.stats().counters.finished == {"length": 1}


# --- requests that are refused ---------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", "x" * 60, (), (1, 256), 7, "\ud800"])
def test_a_request_that_can_never_run_is_refused_at_once_and_takes_no_room(prompt):
    with serving(max_inflight_requests=1) as server:
        with pytest.raises(RequestError) as expected:
            server.engine.check_prompt(prompt, GREEDY)
        for _ in range(2):
            with pytest.raises(RequestError) as caught:
                server.submit(prompt, GREEDY)
            assert str(caught.value) == str(expected.value)
        assert tokens_in(read(server.submit((1, 2, 3), GREEDY))) == tokens_alone((1, 2, 3), GREEDY)


def test_text_that_others_tokenize_is_refused_by_the_stream():
    with serving(tokenize_workers=2, max_inflight_requests=1) as server:
        stream = server.submit("x" * 60, GREEDY)
        for _ in range(2):
            with pytest.raises(RequestError, match="60 tokens and max_new_tokens is 8"):
                next(stream)
        with pytest.raises(RequestError, match="not in the vocabulary"):  # ids need no tokenizing
            server.submit((256,), GREEDY)
        assert tokens_in(read(server.submit("ab", GREEDY))) == tokens_alone((97, 98), GREEDY)


def test_when_there_are_too_many_unfinished_requests_submit_refuses():
    engine = make_engine()
    gate = Gate(engine)
    with serving(engine, max_inflight_requests=2) as server:
        first, second = gate.submit_all(server.submit, [(1, 2, 3), (5, 6)], [SamplingParams(1), LONG])
        message = "2 requests are unfinished and max_inflight_requests is 2; submit again when one has ended"
        for _ in range(2):
            with pytest.raises(OverloadedError, match=message):
                server.submit((7,), GREEDY)
        gate.allow(3)
        assert len(read(first)) == 1
        third = server.submit((7,), GREEDY)  # at once: whoever has the last chunk finds room
        with pytest.raises(OverloadedError):
            server.submit((7,), GREEDY)
        second.close()
        gate.allow()
        assert tokens_in(read(third)) == tokens_alone((7,), GREEDY)
        server.submit((7,), GREEDY)
        server.submit((7,), GREEDY)
    assert engine.stats().counters.finished["cancelled"] >= 1


def test_room_is_given_back_before_the_last_chunk_is(monkeypatch):
    """So whoever has it can submit again, however fast."""
    with serving() as server:
        worker, counts = server._worker, []
        send = worker._send

        def spy(submission, item):
            counts.append(submission in worker._unfinished)
            send(submission, item)

        monkeypatch.setattr(worker, "_send", spy)
        read(server.submit((1, 2, 3), SamplingParams(3)))
    assert counts == [True, True, False]


def test_a_request_counts_until_it_is_finished_not_until_it_is_read():
    with serving(max_inflight_requests=1) as server:
        unread = server.submit((1, 2, 3), GREEDY)
        wait_for(lambda: not server._worker._unfinished)
        assert tokens_in(read(server.submit((5, 6), GREEDY))) == tokens_alone((5, 6), GREEDY)
        assert tokens_in(read(unread)) == tokens_alone((1, 2, 3), GREEDY)


def test_a_request_that_the_engine_refuses_after_all_fails_alone(monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine, "add_request", failing(engine.add_request))
    with serving(engine, max_inflight_requests=1) as server:
        with pytest.raises(Boom):
            next(server.submit((1, 2, 3), GREEDY))
        assert tokens_in(read(server.submit((5, 6), GREEDY))) == tokens_alone((5, 6), GREEDY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_inflight_requests": 0}, "max_inflight_requests must be a positive whole number, not 0"),
        ({"max_inflight_requests": 1.5}, "max_inflight_requests must be a positive whole number, not 1.5"),
        ({"stream_interval": 0}, "stream_interval must be a positive whole number, not 0"),
        ({"stream_interval": True}, "stream_interval must be a positive whole number, not True"),
        ({"tokenize_workers": -1}, "tokenize_workers must be a whole number of 0 .* not -1"),
        ({"tokenize_workers": None}, "tokenize_workers must be a whole number of 0 .* not None"),
    ],
)
def test_options_out_of_range_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        StreamingServer(make_engine(), **settings)
    assert labkit_threads() == []


def test_an_engine_with_requests_of_its_own_is_refused():
    engine = make_engine()
    engine.add_request((1, 2, 3), GREEDY)
    with pytest.raises(OptionError, match="unfinished requests"):
        StreamingServer(engine)


# --- steps that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 3])
def test_when_a_step_fails_each_consumer_is_told_and_the_next_request_is_served(monkeypatch, stream_interval):
    engine = make_engine(prefix_cache=False)
    monkeypatch.setattr(
        engine.decode_step, "decode_step_sessions", failing(engine.decode_step.decode_step_sessions, 1)
    )
    gate = Gate(engine)
    with serving(engine, stream_interval=stream_interval, max_inflight_requests=3) as server:
        prompts = [(1, 2, 3), (5, 6), (7,)]
        streams = gate.submit_all(server.submit, prompts, [LONG] * 3)
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
        assert tokens_in(read(server.submit((1, 2, 3), LONG))) == tokens_alone((1, 2, 3), LONG)


def test_what_ended_in_a_step_that_failed_has_ended_well(monkeypatch):
    engine = make_engine(decode_first=True, prefill_max_batch_size=1)
    monkeypatch.setattr(engine_module, "prefill_sessions", failing(engine_module.prefill_sessions, 2))
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


def test_steps_may_fail_again_and_again():
    engine = make_engine()
    step, engine.step = engine.step, failing(lambda: None)
    with serving(engine) as server:
        for _ in range(3):
            token_ids, error = read_until_error(server.submit((1, 2, 3), GREEDY))
            assert token_ids == () and isinstance(error.__cause__, Boom)
            engine.step = failing(lambda: None)
        engine.step = step
        assert tokens_in(read(server.submit((1, 2, 3), GREEDY))) == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.parametrize("stream_interval", [1, 3])
def test_when_not_even_cancelling_works_nobody_is_left_waiting(monkeypatch, stream_interval):
    def broken(request_id):
        raise ZeroDivisionError

    engine = make_engine()
    monkeypatch.setattr(engine, "cancel", broken)
    monkeypatch.setattr(request_module, "sample", failing(request_module.sample, 3))
    gate = Gate(engine)
    with serving(engine, stream_interval=stream_interval) as server:
        prompts = [(1, 2, 3), (5, 6)]
        streams = gate.submit_all(server.submit, prompts, [LONG] * 2)
        gate.allow()
        for stream, prompt in zip(streams, prompts, strict=True):
            token_ids, error = read_until_error(stream)
            assert token_ids == tokens_alone(prompt, LONG)[:2]
            assert str(error) == "the server broke down when this request had 2 tokens: ZeroDivisionError()"
            assert isinstance(error.__cause__.__context__, Boom)  # what began it
        with pytest.raises(StreamError, match="the server is closed"):
            server.submit((1, 2, 3), GREEDY)
        monkeypatch.undo()
        wait_for(lambda: not labkit_threads())  # then the engine is anybody's again
        for request_id in (0, 1):
            engine.cancel(request_id)


# --- the server's end ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_interval", [1, 4])
def test_closing_the_server_ends_each_stream_with_an_error_after_what_it_has(stream_interval):
    engine = make_engine(max_batch_size=2)
    prompts = [(1, 2, 3), (5, 6), (7,)]  # the third still waits
    with serving(engine, stream_interval=stream_interval) as server:
        hold(server)
        streams = [server.submit(prompt, LONG) for prompt in prompts]
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
    assert engine.stats().counters.finished == {"cancelled": 3}


def test_closing_the_server_ends_streams_that_are_still_tokenized(monkeypatch):
    engine = make_engine()
    check_prompt, go_on = engine.check_prompt, threading.Event()
    monkeypatch.setattr(engine, "check_prompt", lambda *args: (go_on.wait(TIMEOUT), check_prompt(*args))[1])
    with serving(engine, tokenize_workers=1) as server:
        streams = [server.submit("To be", GREEDY) for _ in range(3)]
        closing = start(server.close)
        told = [start(read_until_error, stream).result(TIMEOUT) for stream in streams]
        go_on.set()
        closing.result(TIMEOUT)
    assert all(t == () and "the server was closed" in str(e) for t, e in told)


def test_a_closed_server_takes_nothing_and_closing_it_again_does_nothing():
    with serving() as server:
        stream = server.submit((1, 2, 3), GREEDY)
        read(stream)
    server.close()
    with pytest.raises(StreamError, match="the server is closed and takes no more requests"):
        server.submit((1, 2, 3), GREEDY)
    stream.close()
    assert tokens_of(server.engine.generate([(1, 2, 3)], GREEDY)) == [tokens_alone((1, 2, 3), GREEDY)]


def test_two_threads_may_close_a_server_and_both_wait_for_its_end():
    engine = make_engine()
    with serving(engine) as server:
        hold(server)
        stream = server.submit((1, 2, 3), LONG)
        next(stream)

        def close():
            server.close()
            return labkit_threads()

        assert [closing.result(TIMEOUT) for closing in [start(close), start(close)]] == [[], []]


def test_an_engine_can_be_served_again():
    engine = make_engine()
    for _ in range(2):
        with serving(engine) as server:
            assert tokens_in(read(server.submit((1, 2, 3), GREEDY))) == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.slow
def test_a_server_that_nobody_holds_is_closed_but_a_stream_holds_it():
    engine = make_engine()
    stream = StreamingServer(engine, tokenize_workers=1).submit("ab", GREEDY)
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


# --- the worker ------------------------------------------------------------------------------------


def test_a_worker_with_nothing_to_do_sleeps():
    with serving() as server:
        read(server.submit((1, 2, 3), GREEDY))
        steps, cpu = server.engine.stats().counters.steps, cpu_seconds(server._worker.thread)
        time.sleep(0.2)
        assert cpu_seconds(server._worker.thread) - cpu < 0.1
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


def test_many_threads_submit_read_and_leave_at_random():
    engine = make_engine(max_batch_size=4, max_blocks_per_layer=14, decode_first=True)

    def client(number):
        dice = random.Random(number)
        for _ in range(8):
            which = dice.randrange(len(PROMPTS))
            try:
                stream = server.submit(PROMPTS[which], EACH_PARAMS[which])
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
        for each in [start(client, number) for number in range(8)]:
            each.result(TIMEOUT)
        wait_for(lambda: not server._worker._unfinished)
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
                server._worker.ask(taken.append, None)
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
            server._worker.ask(taken.append, None)
        closing.append(start(server.close))
        wait_for(lambda: server._worker._quitting)
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
        worker, is_over = server._worker, threading.Event()
        for _ in range(2 * streaming_worker.MOST_READ):
            worker.ask(int)

        def ask_again():
            if not is_over.is_set():
                worker.ask(ask_again)

        wait_for(worker._inbox.empty)
        worker.ask(ask_again)
        stream = start(list, server.submit(PROMPTS[0], EACH_PARAMS[0]))
        try:
            assert stream.result(TIMEOUT)[-1].completion.token_ids == EXPECTED[0]
        finally:
            is_over.set()
