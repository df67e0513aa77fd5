"""Streams: each consumer gets the tokens of its own request, and one that leaves cancels it."""

import asyncio
import gc
import signal
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count

import async_helpers
import pytest
from async_helpers import submit_and_read_all
from helpers import GREEDY, SEEDED, make_engine, tokens_alone
from streaming_helpers import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PROMPTS,
    TIMEOUT,
    Gate,
    read,
    serving,
    start,
    tokens_in,
    wait_for,
)
from traced import at_lines, interrupts_raise  # noqa: F401

from labkit import FinishReason, SamplingParams
from labkit.engine import request as request_module
from labkit.engine.streaming import stream as stream_module
from labkit.errors import StreamError

# --- tokens ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tokenize_workers", [0, 2])
@pytest.mark.parametrize("stream_interval", [1, 3])
@pytest.mark.parametrize("decode_first", [False, True])
def test_each_consumer_gets_the_tokens_of_its_own_request(
    submit_to, decode_first, stream_interval, tokenize_workers
):
    engine = make_engine(decode_first=decode_first, max_batch_size=4, max_blocks_per_layer=12)
    prompts = [bytes(prompt).decode() for prompt in PROMPTS] if tokenize_workers else PROMPTS
    with serving(engine, stream_interval=stream_interval, tokenize_workers=tokenize_workers) as server:
        submit = submit_to(server)
        streams = [submit(*each) for each in zip(prompts * 3, EACH_PARAMS * 3, strict=True)]
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


@pytest.mark.parametrize(
    ("stream_interval", "texts"),
    [(1, ["o", "k", "", "Ex", "", "", ""]), (3, ["ok", "Ex", ""]), (99, ["okEx"])],
)
def test_text_ends_before_a_stop_string_of_which_nothing_is_shown(monkeypatch, stream_interval, texts):
    script = iter(b"okExEND and more")
    monkeypatch.setattr(request_module, "sample", lambda *_: [next(script)])
    with serving(stream_interval=stream_interval) as server:
        chunks = read(server.submit((1, 2, 3), SamplingParams(16, stop="END")))
    completion = chunks[-1].completion
    assert [chunk.text for chunk in chunks] == texts
    assert (completion.text, completion.finish_reason) == ("okEx", FinishReason.STOP)
    assert tokens_in(chunks) == completion.token_ids == tuple(b"okExEND")


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


def before_the_first_token(streams):
    streams.clear()


@pytest.mark.slow
@pytest.mark.parametrize("leave", [by_close, by_with, by_leaving_the_loop, before_the_first_token])
def test_a_consumer_that_leaves_cancels_its_request_and_no_other(submit_to, leave):
    engine = make_engine(prefix_cache=False)
    gate = Gate(engine)
    with serving(engine) as server:
        submit = submit_to(server)
        first, *streams = gate.submit_all(submit, [(5, 6), (1, 2, 3)], [GREEDY, LONG])
        gate.allow(3)  # two prefills and a decode step
        leave(streams)
        del streams
        gc.collect()
        second = submit((7, 8), SEEDED)
        gate.allow()
        assert tokens_in(read(first)) == tokens_alone((5, 6), GREEDY)
        assert tokens_in(read(second)) == tokens_alone((7, 8), SEEDED)
        stats = engine.stats()
        assert stats.counters.finished == {"cancelled": 1, "length": 2}
        assert stats.free_blocks == stats.blocks_per_layer
    engine.check_integrity()


def test_closing_a_stream_wakes_the_consumer_that_waits(submit_to):
    engine = make_engine()
    gate = Gate(engine)
    with serving(engine) as server:
        submit = submit_to(server)
        stream = submit((1, 2, 3), LONG)
        reading = start(read, stream)
        time.sleep(0.02)
        stream.close()
        assert reading.result(TIMEOUT) == []  # before the engine has made a step
        gate.allow()
    assert engine.stats().counters.finished == {"cancelled": 1}


def test_an_interrupt_as_a_chunk_is_taken_leaves_no_gap(interrupts_raise):  # noqa: F811
    interrupt = partial(signal.raise_signal, signal.SIGINT)
    with serving(make_engine()) as server:
        for line in range(1, 40):
            stream, chunks = server.submit((1, 2), GREEDY), []
            with suppress(KeyboardInterrupt), at_lines([line], interrupt, within=stream_module.__file__):
                chunks += stream
            rest = list(stream)
            assert not rest or tokens_in(chunks + rest) == tokens_alone((1, 2), GREEDY)


def test_after_its_end_a_stream_stays_ended_and_closing_does_nothing(submit_to):
    with serving() as server:
        submit = submit_to(server)
        with submit((1, 2, 3), GREEDY) as stream:
            assert tokens_in(read(stream)) == tokens_alone((1, 2, 3), GREEDY)
            assert list(stream) == []
        stream.close()
        assert list(stream) == []
        del stream
        read(submit((5, 6), GREEDY))  # the worker has done all that it was asked for
    assert server.engine.stats().counters.finished == {"length": 2}


def test_a_stream_closed_before_its_text_is_tokenized_never_reaches_the_engine(monkeypatch):
    engine, asked = make_engine(), []
    check_prompt, go_on = engine.check_prompt, threading.Event()

    def waiting(*args):
        asked.append(args[0])
        go_on.wait(TIMEOUT)
        return check_prompt(*args)

    monkeypatch.setattr(engine, "check_prompt", waiting)
    with serving(engine, tokenize_workers=1, max_inflight_requests=1) as server:
        closed = [server.submit("To be", LONG)]
        wait_for(lambda: asked)
        for text in ("left", "too"):
            closed[-1].close()
            wait_for(lambda: not server.worker._unfinished)  # there is room again before the tokens are ready
            closed.append(server.submit(text, LONG))
        closed[-1].close()
        wait_for(lambda: not server.worker._unfinished)
        stream = server.submit("or not", GREEDY)
        go_on.set()
        (completion,) = [chunk.completion for chunk in read(stream) if chunk.completion]
    assert completion.request_id == 0
    assert [text for text in asked if isinstance(text, str)] == ["To be", "or not"]
    assert engine.stats().counters.finished == {"length": 1}


# --- on an event loop ------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_a_task_that_is_cancelled_cancels_its_request_and_no_other():
    """As a timeout cancels it."""
    engine = make_engine(prefix_cache=False)
    gate = Gate(engine)

    async def leave_and_go_on(server):
        first, *streams = gate.submit_all(server.submit_async, [(5, 6), (1, 2, 3)], [GREEDY, LONG])
        gate.allow(3)  # two prefills and a decode step
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await async_helpers.read(streams[0])
        assert await async_helpers.read(streams[0]) == []  # closed, although somebody holds it still
        second = server.submit_async((7, 8), SEEDED)
        gate.allow()
        assert tokens_in(await async_helpers.read(first)) == tokens_alone((5, 6), GREEDY)
        assert tokens_in(await async_helpers.read(second)) == tokens_alone((7, 8), SEEDED)

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
                asyncio.run(async_helpers.read(stream))
