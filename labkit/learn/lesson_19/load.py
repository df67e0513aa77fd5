"""Lesson 19, steps 4 and 5: clients that leave, and those for whom there is no room."""

import asyncio
import inspect
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import openai

from labkit.checks import shown
from labkit.engine import InferenceEngine
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven, small_model
from labkit.learn.lesson_19.frames import drive
from labkit.learn.lesson_19.parts import Admit, Leaving, Server, asked, own_engine
from labkit.learn.steps import noted
from labkit.watch.replaced import replaced

NUM_DRAWN = 300  # loads
PATIENCE = 60  # seconds, after which nothing more will come; no right part waits for them
TURNS = 50  # of an event loop, in which a task that was woken has done its work

# --- step 4: a client that leaves ----------------------------------------------------------------------

ENDLESS = 50  # tokens of an answer that nobody waits for


def check_leaving(leaving: Leaving) -> Report:
    """Whether the requests of a client that has left are gone before the step after the next."""
    proof = "2 clients of a running server, in the middle of an answer and in the queue."
    trials = [_stays_while_it_is_there, _leaves_in_its_answer, _leaves_in_the_queue]
    report = proven("leaving", [partial(trial, leaving) for trial in trials], proof)
    return noted(report, "19", "my_leaving", leaving)


class PlayedStream:
    """A stream that notes whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def __aiter__(self) -> "PlayedStream":
        return self

    async def __anext__(self) -> str:
        return "text"


def _stays_while_it_is_there(leaving: Leaving) -> None:
    for num_streams in (1, 3):
        streams = [PlayedStream() for _ in range(num_streams)]
        messages = [*["http.request"] * (1 + num_streams), "http.disconnect"]
        told, early = [], list[PlayedStream]()

        async def receive() -> dict[str, str]:
            if "http.disconnect" not in told:  # noqa: B023
                early.extend(stream for stream in streams if stream.is_closed)  # noqa: B023
            told.append(messages[min(len(told), len(messages) - 1)])  # noqa: B023
            return {"type": told[-1]}  # noqa: B023

        waiting = leaving(receive, streams)
        if not inspect.isawaitable(waiting):
            raise BrokenContract(f"it waits: it returned {shown(waiting)}. Make it an `async def`.")
        drive(waiting)
        if early or ("http.disconnect" not in told and any(stream.is_closed for stream in streams)):
            raise BrokenContract(
                'a client that is there keeps its answer: a message of the type "http.request" came, and its '
                'stream was closed. Wait for "http.disconnect".'
            )
        open_ones = sum(not stream.is_closed for stream in streams)
        if open_ones:
            raise BrokenContract(
                f"all of a client's answers end when it leaves: {open_ones} of {num_streams} streams were "
                'not closed after "http.disconnect".'
            )


class Steps(ExitStack):
    """The steps of a server's engine, which wait until each is let through."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.num_asked, self._go, self._is_over = 0, threading.Semaphore(0), False
        self.enter_context(replaced(server.streaming.worker, "step", self._waiting))
        self.callback(self._end)

    def _end(self) -> None:
        self._is_over = True
        self._go.release()

    def _waiting(self, inner: Callable[[], None]) -> Callable[[], None]:
        def step() -> None:
            self.num_asked += 1
            while not self._is_over and not self._go.acquire(timeout=0.1):
                pass
            inner()

        return step

    def let(self, count: int) -> None:
        """Let so many more steps through."""
        self._go.release(count)

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds. Raises BrokenContract, naming it, if it never does."""
        until = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > until:
                raise BrokenContract(f"{what} has not happened in {PATIENCE} seconds.")
            time.sleep(0.001)


def _noticed(server: Server) -> threading.Event:
    """Set when the server has heard that a client left, and the reader's function has had the time to act."""
    heard, inner = threading.Event(), server.door.leaving

    async def leaving(receive: Callable[[], Awaitable[Any]], streams: Sequence[Any]) -> None:
        async def hear() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            for _ in range(TURNS):
                await asyncio.sleep(0)
            heard.set()

        server.hearing = asyncio.ensure_future(hear())  # type: ignore[attr-defined]  # so that it lives on
        await inner(receive, streams)

    server.door.leaving = leaving  # type: ignore[method-assign]
    return heard


def _gate_engine(max_batch_size: int = 8) -> InferenceEngine:
    return own_engine(
        small_model(), max_batch_size, block_size=4, max_blocks_per_layer=64, prefix_cache=False
    )


def _leaves_in_its_answer(leaving: Leaving) -> None:
    with Server(_gate_engine(), leaving=leaving) as server, Steps(server) as steps:
        pool, heard = server.engine.kv_manager, _noticed(server)
        num_free = pool.num_free_blocks
        steps.let(6)
        stream = server.ask("1 2 3", ENDLESS, stream=True)
        next(iter(stream))
        steps.wait_for(lambda: steps.num_asked == 7, "the seventh step")
        held = num_free - pool.num_free_blocks
        stream.close()
        steps.wait_for(heard.is_set, "that the server hears of a closed connection")
        steps.let(1)
        worker = server.streaming.worker
        steps.wait_for(lambda: steps.num_asked >= 8 or worker.num_unfinished == 0, "the next step")
        if worker.num_unfinished:
            raise BrokenContract(
                "a client that leaves frees its blocks within one step: a client left in the middle of its "
                f"answer, with {held} blocks, and one step later {worker.num_unfinished} of its requests was "
                "still in the engine. Close every stream as soon as "
                '"http.disconnect" comes, and wait for nothing else.'
            )
        if pool.num_free_blocks != num_free:
            raise BrokenContract(f"blocks are given back: {num_free - pool.num_free_blocks} are still held.")


def _leaves_in_the_queue(leaving: Leaving) -> None:
    """With two answers, while another client has the one place in the batch."""
    with Server(_gate_engine(max_batch_size=1), leaving=leaving) as server, Steps(server) as steps:
        worker, heard = server.streaming.worker, _noticed(server)

        async def come_and_go() -> None:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
                asking = asyncio.ensure_future(client.chat.completions.create(**asked("4 5", ENDLESS), n=2))
                while worker.num_unfinished < 3 and not asking.done():
                    await asyncio.sleep(0.001)
                asking.cancel()

        steps.let(4)
        stream = server.ask("1 2 3", ENDLESS, stream=True)
        next(iter(stream))
        steps.wait_for(lambda: steps.num_asked == 5, "the fifth step")
        heard.clear()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, come_and_go()).result()
        steps.wait_for(heard.is_set, "that the server hears of a closed connection")
        steps.let(1)
        steps.wait_for(lambda: steps.num_asked == 6, "the sixth step")
        if (left := worker.num_unfinished - 1) > 0:
            raise BrokenContract(
                "a client that leaves frees its place within one step: one left that had waited in the "
                f"queue, and when a step had been made since, {left} of its 2 requests were still there. No "
                "token of theirs will come for a long time: wait for no token."
            )
        stream.close()


# --- step 5: admission ---------------------------------------------------------------------------------


def check_admit(admit: Admit) -> Report:
    """Whether a function answers 200, 429 or 400 as the load has it, and a server with it lets nothing in
    that it refuses."""
    proof = f"{NUM_DRAWN} random loads, and a full server."
    report = proven("admit", [partial(_drawn_loads, admit), partial(_full_server, admit)], proof)
    return noted(report, "19", "my_admit", admit)


def _drawn_loads(admit: Admit) -> None:
    rng = random.Random(3)
    draws = [(rng.randint(0, 6), rng.randint(1, 6), rng.randint(1, 6)) for _ in range(NUM_DRAWN)]
    for unfinished, more, limit in sorted(draws, key=lambda draw: (draw[1] > draw[2], sum(draw))):
        unfinished = min(unfinished, limit)
        status = admit(unfinished, more, limit)
        if more > limit:
            expected, rule = (
                400,
                "what can never be served is refused for good, as 429 brings a client back",
            )
        elif unfinished + more > limit:
            expected, rule = 429, "a request for which there is no room now gets 429, before it begins"
        else:
            expected, rule = 200, "what there is room for is let in"
        if status != expected:
            raise BrokenContract(
                f"{rule}: with {unfinished} answers unfinished, {more} more asked for and a "
                f"limit of {limit} it answers {shown(status)}, expected {expected}."
            )


def _full_server(admit: Admit) -> None:
    with Server(_gate_engine(), admit=admit, limit=3) as server, Steps(server) as steps:
        worker = server.streaming.worker
        steps.let(4)
        stream = server.ask("1 2 3", ENDLESS, stream=True, n=2)
        next(iter(stream))
        before = worker.num_unfinished, server.engine.stats().waiting
        try:
            server.ask("1 2", ENDLESS, n=2)
        except openai.RateLimitError as error:
            if "retry-after" not in error.response.headers:
                raise BrokenContract("429 says when to come back: there is no header Retry-After.") from error
        after = worker.num_unfinished, server.engine.stats().waiting
        if before != after:
            raise BrokenContract(f"what is refused changes nothing: {before} became {after}.")
        stream.close()
