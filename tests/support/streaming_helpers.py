"""What the tests of streaming share: a server, an engine that steps when it is told to, nobody who hangs."""

import random
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from helpers import GREEDY, SEEDED, assert_no_block_is_lost, make_engine, tokens_alone

from labkit import SamplingParams
from labkit.engine import InferenceEngine, StreamingServer
from labkit.errors import LabkitError, RequestError, StreamError

TIMEOUT = 600  # seconds; nothing here takes ten on a machine that is not busy
LONG = SamplingParams(50)
PROMPTS = [(1, 2, 3), tuple(range(20, 33)), (7,), (1, 2, 3, 4, 5, 6), (9, 9), (97, 98)]
EACH_PARAMS = [
    *(GREEDY, SEEDED, SamplingParams(1), SamplingParams(13, temperature=1.0, seed=1)),
    *(SamplingParams(24), replace(SEEDED, max_new_tokens=3, seed=8)),
]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]


@pytest.fixture(autouse=True)
def nobody_waits_for_ever():
    """What hangs in the main thread fails, and what hangs again while that is cleaned up fails again."""

    def fail(*_):
        raise TimeoutError(f"the test hangs since {TIMEOUT} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT, TIMEOUT)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def start(function, *args) -> Future[Any]:
    """Call it on a thread of its own; of the future, ask result(TIMEOUT)."""
    future: Future[Any] = Future()

    def call():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def wait_for(condition) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.001)


def labkit_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("labkit-")]


@contextmanager
def serving(engine=None, **settings):
    """A server; at its end no thread and no block is left."""
    with StreamingServer(engine or make_engine(), **settings) as server:
        yield server
    assert labkit_threads() == []
    assert_no_block_is_lost(server.engine)


class Gate:
    """From now on, a step of the engine begins when it is allowed to."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._step, engine.step = engine.step, self._wait_and_step
        self._permits = threading.Semaphore(0)
        self._reached = threading.Event()

    def _wait_and_step(self):
        self._reached.set()
        assert self._permits.acquire(timeout=TIMEOUT)
        return self._step()

    def allow(self, num_steps=1000):
        self._permits.release(num_steps)

    def submit_all(self, submit, prompts, each_params):
        """The first is prefilled alone, and then the others together."""
        streams = [submit(prompts[0], each_params[0])]
        assert self._reached.wait(TIMEOUT)
        return streams + [submit(*each) for each in zip(prompts[1:], each_params[1:], strict=True)]


def hold(server: StreamingServer) -> None:
    """After six more steps, each waits until the worker is asked for something, such as to close the server,
    so that a long request has not ended by then."""
    step, steps = server.engine.step, count()

    def wait_and_step():
        if next(steps) >= 6:
            wait_for(lambda: not server.worker._inbox.empty())
        return step()

    server.engine.step = wait_and_step


def cpu_seconds(thread) -> float:
    """What the thread itself has computed, whatever else the machine does."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def tokens_in(chunks):
    return sum((chunk.token_ids for chunk in chunks), ())


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


def tokens_until_the_end(stream) -> tuple[tuple[int, ...], LabkitError | None]:
    """What a stream gives, and the error that it ends with, if it does."""
    received = ()
    try:
        for chunk in stream:
            received += chunk.token_ids
    except StreamError as error:
        return received, error
    return received, None
