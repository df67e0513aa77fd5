"""Lesson 19: where the time of a request goes, and what HTTP costs beside calls in the process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import openai
import torch

from labkit.engine import InferenceEngine, SamplingParams, StreamingServer, Timing
from labkit.engine.step.side_stream import NO_SIDE, NoSide, SideStream
from labkit.learn.lesson_19.parts import Server, asked
from labkit.show import Stretch
from labkit.watch.replaced import noting, replaced

# --- one request on one clock --------------------------------------------------------------------------

now = time.perf_counter


class DeviceClock:
    """When the device gets to a point of its work. A GPU's moments are events of its stream, which are put on
    the host's clock when all work is done; a CPU works at once."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            torch.cuda.synchronize()
            self._zero = self.moment()
            torch.cuda.synchronize()
            self._zero_at = now()

    def moment(self) -> Any:
        """The point behind all work that was launched so far."""
        if not self._is_cuda:
            return now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, moment: Any) -> float:
        """A moment in seconds of time.perf_counter()."""
        if not self._is_cuda:
            return moment
        moment.synchronize()
        return self._zero_at + 1e-3 * self._zero.elapsed_time(moment)


@dataclass
class Marks:
    """The moments of one request, in seconds of time.perf_counter()."""

    began: float = 0.0  # the client
    entered: float = 0.0  # the application: the head of the request has been read
    body_read: float = 0.0
    checked: float = 0.0  # JSON and parameters
    timing: Timing | None = None  # in the engine
    steps: list[tuple[float, float, str]] = field(default_factory=list)
    launches: list[tuple[float, float, str]] = field(default_factory=list)
    sends: list[tuple[float, float]] = field(default_factory=list)  # of frames
    received: list[float] = field(default_factory=list)

    def stretches(self) -> list[Stretch]:
        """What is drawn."""
        arrived, admitted = self.timing.arrived, self.timing.admitted
        found = [
            ("client", "sends", self.began, self.entered),
            ("event loop", "reads and checks", self.entered, self.checked),
            ("tokenizer", "text to tokens", self.checked, arrived),
            ("engine", "waits in the queue", arrived, admitted),
            *(("engine", work, start, end) for start, end, work in self.steps),
            *(("model", work, start, end) for start, end, work in self.launches),
            *(("client", "a frame", at, at) for at in self.received),
            *(("event loop", "a frame", start, end) for start, end in self.sends),
        ]
        return [
            Stretch(lane, work, 1e3 * (start - self.began), 1e3 * (end - self.began))
            for lane, work, start, end in found
        ]


def clocked(app: Callable, marks: Marks) -> Callable:
    """An ASGI middleware that notes when a request's bytes came, and when its frames went."""

    async def noting_app(scope: Any, receive: Any, send: Any) -> None:
        async def timed_receive() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                marks.body_read = now()
            return message

        async def timed_send(message: Any) -> None:
            start = now()
            await send(message)
            if message.get("body"):
                marks.sends.append((start, now()))

        marks.entered = now()
        await app(scope, timed_receive, timed_send)

    return noting_app


def one_request(engine: InferenceEngine, text: str, num_tokens: int, **parts: Any) -> Marks:
    """Send a request to a server with the reader's parts and note its moments. Another one came before it, so
    that nothing is done for the first time."""
    marks = Marks()
    with Server(engine, middleware=(clocked, {"marks": marks}), **parts) as server:
        list(server.ask(text[::-1], num_tokens, stream=True))
        vars(marks).update(vars(Marks()))
        with watched(server, marks):
            marks.began = now()
            for _ in server.ask(text, num_tokens, stream=True):
                marks.received.append(now())
    return marks


@contextmanager
def watched(server: Server, marks: Marks) -> Iterator[None]:
    """Inside the block, what the server and its engine do is noted; what the device does, behind it."""
    engine, launched, on_device = server.engine, [], []
    chunk_step = engine.prefill.chunk_step
    clock = DeviceClock(engine.device)

    def step_of(inner: Callable) -> Callable:
        def step() -> None:
            launched.clear()
            start = now()
            inner()
            if launched:  # the last step only reads what the one before it made
                marks.steps.append((start, now(), launched[0]))

        return step

    def launch_of(work: str, side: SideStream | NoSide, inner: Callable) -> Callable:
        def launch(*args: Any, **kwargs: Any) -> Any:
            with side:  # the stream in which the work is
                start = clock.moment()
            made = inner(*args, **kwargs)
            with side:
                on_device.append((start, clock.moment(), work))
            launched.append(work)
            return made

        return launch

    def frames_of(inner: Callable) -> Callable:
        def frames(first: Any, pieces: AsyncIterator[Any], *rest: Any) -> Any:
            async def noted() -> AsyncIterator[Any]:
                async for piece in pieces:
                    if piece[1].completion is not None:
                        marks.timing = piece[1].completion.timing
                    yield piece

            return inner(first, noted(), *rest)

        return frames

    def checked(_: object) -> None:
        marks.checked = now()

    with ExitStack() as stack:
        for owner, name, wrapper in (
            (server.streaming.worker, "step", step_of),
            (chunk_step, "launch", partial(launch_of, "a prompt's chunk", chunk_step.side)),
            (engine.decode_step, "start", partial(launch_of, "a token's step", NO_SIDE)),
            (server.door, "frames", frames_of),
            (server.door, "admit", noting(checked)),
        ):
            stack.enter_context(replaced(owner, name, wrapper))
        yield
    marks.launches += [(clock.seconds(start), clock.seconds(end), work) for start, end, work in on_device]


# --- what HTTP costs -------------------------------------------------------------------------------------

TEXTS = ("To be, or not to be", "O Romeo", "The king", "What news from")


class Run(NamedTuple):
    """What clients saw: tokens per second of all, and seconds to each one's first text."""

    rate: float
    firsts: tuple[float, ...]


def in_process(engine: InferenceEngine, num_clients: int, num_tokens: int) -> Run:
    """Clients are tasks of an event loop, and read the streams of a StreamingServer."""
    params = SamplingParams(num_tokens, stop_on_eos=False)
    with StreamingServer(engine, tokenize_workers=1) as server:

        async def texts(prompt: str) -> AsyncIterator[str | None]:
            async for chunk in server.submit_async(prompt, params):
                yield chunk.text

        return _run(texts, num_clients, num_tokens)


def over_http(engine: InferenceEngine, num_clients: int, num_tokens: int, **parts: Any) -> Run:
    """Clients are tasks of an event loop, and read streams of the openai client."""
    with Server(engine, limit=num_clients, **parts) as server:
        # One object for all: it has a connection for each, and takes longer to make than an answer does.
        create = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none").chat.completions.create

        async def texts(prompt: str) -> AsyncIterator[str | None]:
            async for chunk in await create(**asked(prompt, num_tokens), stream=True):
                yield chunk.choices[0].delta.content

        return _run(texts, num_clients, num_tokens)


def _run(texts: Callable[[str], AsyncIterator[str | None]], num_clients: int, num_tokens: int) -> Run:
    """All clients at once, after one that warms up, on an event loop of a thread: a notebook's own one runs
    the cell."""

    async def seconds_to_text(prompt: str) -> float:
        began = now()
        arrived = [now() - began async for text in texts(prompt) if text]
        return arrived[0]

    async def all_of_them() -> Run:
        await seconds_to_text(TEXTS[0])
        began = now()
        firsts = await asyncio.gather(*map(seconds_to_text, islice(cycle(TEXTS), num_clients)))
        return Run(num_clients * num_tokens / (now() - began), tuple(firsts))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, all_of_them()).result()
