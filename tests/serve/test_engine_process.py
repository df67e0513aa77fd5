"""The engine's process: what it does not survive, and what those who wait are told when it is gone."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import openai
import pytest
from helpers import failing, make_engine
from http_server import NAME, by_wire, serving
from small_checkpoint import save_small_checkpoint
from streaming_helpers import TIMEOUT, wait_for

from labkit import SamplingParams, load_model
from labkit.engine import StreamingServer
from labkit.engine.delivery import StepOutputs
from labkit.errors import LabkitError, RequestError, StreamError
from labkit.paths import ROOT
from labkit.serve import engine_process
from labkit.serve.__main__ import engine_server
from labkit.serve.engine_client import EngineClient
from labkit.serve.engine_process import EngineSettings
from labkit.serve.http import app_over
from labkit.serve.wire import Wire, tokenizer_of, tokenizer_to_json

SETTINGS = EngineSettings("random:small", "14")


def is_alive(pid):
    """Whether a process runs: one that has ended and is not waited for does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


@contextmanager
def command(*flags):
    """The command, serving, with its engine's process; killed at the end if it is still there."""
    line = [sys.executable, "-m", "labkit.serve", "--model", "random:small", "--port", "0", *flags]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stderr.readline().rpartition(" at http://127.0.0.1:")[2])
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            (process.engine,) = map(int, children)
            process.client = openai.OpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=20
            )
            yield process
        finally:
            process.kill()
    wait_for(lambda: not is_alive(process.engine))


def ask(process):
    return process.client.completions.create(model="random:small", prompt=[1], max_tokens=3)


def of_the_command(test):
    """It starts two processes, and looks for the second one where Linux has it."""
    has_children = Path("/proc/self/task").exists()
    return pytest.mark.slow(pytest.mark.skipif(not has_children, reason="needs Linux")(test))


@of_the_command
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop_and_leaves_no_process(how):
    with command() as process:
        assert ask(process).usage.total_tokens == 4
        process.send_signal(how)
        assert process.wait(TIMEOUT) in (0, -how)
        assert not is_alive(process.engine)
        assert "Traceback" not in process.stderr.read()


@of_the_command
def test_a_server_that_is_killed_leaves_no_process():
    with command() as process:
        ask(process)
        process.kill()
        process.wait()
        wait_for(lambda: not is_alive(process.engine))


@of_the_command
def test_a_server_whose_engine_is_killed_says_so_and_ends():
    with command() as process:
        ask(process)
        subprocess.run(["kill", "-9", str(process.engine)], check=True)
        assert process.wait(TIMEOUT) == 1
        assert "the engine has ended" in process.stderr.read()


@pytest.mark.slow
def test_an_engine_that_cannot_be_had_is_told_and_no_process_is_left():
    with pytest.raises(LabkitError, match="nowhere"):
        EngineClient.start(EngineSettings("data/nowhere", "14"))


def test_where_no_socket_can_be_handed_over_the_engine_is_in_a_thread(monkeypatch):
    monkeypatch.setattr("labkit.serve.__main__.CAN_HAND_OVER", False)
    server = engine_server(SETTINGS, 3)
    with server:
        assert isinstance(server, StreamingServer) and server.max_inflight_requests == 3


def test_streams_of_an_engine_that_is_gone_end_with_an_error(monkeypatch):
    with serving(make_engine(max_blocks_per_layer=256)) as door:
        step, calls = door.engine.step, count()

        def die():  # as a process does: in the middle of a step
            if next(calls) == 20:
                door.streaming.host._wire.socket.shutdown(socket.SHUT_RDWR)
            return step()

        monkeypatch.setattr(door.engine, "step", die)
        asked = {"model": NAME, "prompt": [1, 2], "max_tokens": 60, "temperature": 0}
        stream = iter(door.client.completions.create(stream=True, **asked))
        next(stream)
        with pytest.raises(openai.APIError, match=r"the engine's process has ended when this request had \d"):
            list(stream)
        wait_for(lambda: not door.thread.is_alive())  # the server ends, too
        assert door.streaming.num_unfinished == 0 and door.server.has_lost_engine


async def sizes_of(stream, sizes):
    """How many tokens each chunk has, until the stream ends or raises."""
    async for chunk in stream:
        sizes.append(len(chunk.token_ids))


def test_tokens_between_the_first_and_the_end_come_when_they_are_due(monkeypatch):
    now, sent = [0.0], []
    monkeypatch.setattr(engine_process, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    engine = make_engine()
    step = engine.step

    def step_in_a_millisecond():
        now[0] += 0.001
        return step()

    monkeypatch.setattr(engine, "step", step_in_a_millisecond)

    async def read():
        client = by_wire(engine, frame_every=2.5)
        send = client.host._wire.send
        client.host._wire.send = lambda message: (sent.append(len(message[0])), send(message))
        await sizes_of(client.submit_async([1, 2], SamplingParams(9)), [])
        await asyncio.to_thread(client.close)

    asyncio.run(read())
    assert [size for size in sent if size] == [1, 3, 3, 2]


def test_tokens_that_wait_are_given_before_what_ends_their_stream(monkeypatch):
    engine, sent, read_by_stream = make_engine(), [], []

    async def read():
        client = by_wire(engine, frame_every=1e9)
        send = client.host._wire.send
        client.host._wire.send = lambda message: (sent.append(len(message[0])), send(message))
        await sizes_of(client.submit_async([1, 2], SamplingParams(7)), whole := [])
        monkeypatch.setattr(engine, "step", failing(engine.step, 5, RuntimeError("no luck")))
        with pytest.raises(StreamError, match="when this request had 5 tokens"):
            await sizes_of(client.submit_async([1, 2], SamplingParams(7)), broken := [])
        read_by_stream.extend([sum(whole), sum(broken)])
        await asyncio.to_thread(client.close)

    asyncio.run(read())
    assert [size for size in sent if size] == [1, 6, 1, 4]  # a late reader finds two of them together
    assert read_by_stream == [7, 5]


def test_an_end_is_told_once_also_where_the_reader_has_left(monkeypatch):
    """A request that ended in a step that failed can't be cancelled: its end comes with the next step."""
    engine, ends = make_engine(), []

    def refuse(request_id):
        raise RequestError("it has ended")

    monkeypatch.setattr(engine, "cancel", refuse)

    async def leave():
        client = by_wire(engine)
        send = client.host._wire.send
        client.host._wire.send = lambda message: (ends.extend(message[2]), send(message))
        stream = client.submit_async([1, 2], SamplingParams(20))
        await anext(stream)
        stream.close()
        while client.num_unfinished:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(client.close)

    asyncio.run(leave())
    ((number, end),) = ends
    assert number == 0 and end[0] == "length"


def test_a_server_without_an_engine_says_so():
    async def look():
        client = by_wire(make_engine())
        app = app_over(client, NAME)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as web:
            assert (await web.get("/health")).status_code == 200
            await asyncio.to_thread(client.close)
            asked = {"model": NAME, "prompt": [1]}
            return await web.get("/health"), await web.post("/v1/completions", json=asked)

    for reply in asyncio.run(look()):
        assert reply.status_code == 503 and "the engine has stopped" in reply.json()["error"]["message"]


def test_requests_that_are_left_count_until_the_engine_has_let_go_of_them():
    engine = make_engine()
    engine.step = StepOutputs  # so nothing ends by itself

    async def leave():
        client = by_wire(engine, max_inflight_requests=2)
        try:
            streams = [client.submit_async(prompt, SamplingParams(50)) for prompt in ([1, 2], "a" * 20_000)]
            for stream in streams:
                stream.close()
            assert client.num_unfinished == 2
            while client.num_unfinished:
                await asyncio.sleep(0.001)
            assert client.stats().running == 0
        finally:
            await asyncio.to_thread(client.close)

    asyncio.run(asyncio.wait_for(leave(), TIMEOUT))


def test_an_engine_client_serves_one_loop():
    client = by_wire(make_engine())

    async def submit():
        return client.submit_async([1], SamplingParams(1))

    try:
        asyncio.run(submit())
        with pytest.raises(StreamError, match="another event loop"):
            asyncio.run(submit())
    finally:
        client.close()


def test_messages_are_whole_however_they_come():
    here, there = socket.socketpair()
    with here, there:
        wire, message = Wire(here), {"a": ["é\n", 1.5, None]}
        assert wire.receive(wait=False) == []
        for piece in (b'{"a":["\\u00e9', b'\\n",1.5,null]}\n[1', b"]\n"):
            there.sendall(piece)
            time.sleep(0)
        received = []
        while len(received) < 2:
            received += wire.receive(wait=True)
        assert received == [message, [1]]
        parts = iter([b'{"a":', b"2}\n"])  # what is there at each look
        recv = Mock(side_effect=lambda *_: next(parts))
        assert Wire(Mock(recv=recv)).first() == {"a": 2} and recv.call_count == 2
        there.close()
        assert wire.receive(wait=True) is wire.first() is None


def test_a_tokenizer_is_the_same_in_the_other_process(tmp_path):
    save_small_checkpoint(tmp_path)
    for source in (tmp_path, "random:small"):
        tokenizer = load_model(source).tokenizer
        again = tokenizer_of(tokenizer_to_json(tokenizer))
        token_ids = tokenizer.encode("To be, or the other<|endoftext|>")
        assert again.encode("To be, or the other<|endoftext|>") == token_ids
        assert again.decode(token_ids) == tokenizer.decode(token_ids)
        assert (again.vocab_size, again.eos_token_id) == (tokenizer.vocab_size, tokenizer.eos_token_id)
