"""A workload served by a streaming server: a worker thread drives the engine, each request has a consumer."""

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labkit.bench.workload import Request, Workload, make_run, metrics_of
from labkit.engine import AsyncTokenStream, Chunk, Completion, InferenceEngine, StreamingServer, TokenStream
from labkit.engine.request import Timing
from labkit.errors import OptionError, OverloadedError
from labkit.results.runs import LatencyMetrics, Run

Stream = TokenStream | AsyncTokenStream
CONSUMERS = ("threads", "tasks")


@dataclass(frozen=True)
class Traffic:
    """How a workload's requests are taken in and their tokens consumed.

    consumers: "threads", one per request, or "tasks", one per request on one event loop. The other fields
    are `StreamingServer`'s. Raises OptionError for others.
    """

    max_inflight_requests: int | None = None
    stream_interval: int = 1
    tokenize_workers: int = 0
    consumers: str = "threads"

    def __post_init__(self) -> None:
        if self.consumers not in CONSUMERS:
            raise OptionError(f"consumers must be one of {', '.join(CONSUMERS)}, not {self.consumers!r}")


@dataclass
class Consumer:
    """Reads one stream to its end, noting when each chunk came."""

    stream: Stream
    progress: Callable[[int], object]
    times: list[float] = field(default_factory=list)  # of each chunk with tokens
    completion: Completion | None = None

    def read(self) -> None:
        """Read a `TokenStream` to its end. Raises what ended the stream early."""
        for chunk in self.stream:
            self._take(chunk)

    async def read_async(self) -> None:
        """Read an `AsyncTokenStream` to its end. Raises what ended the stream early."""
        async for chunk in self.stream:
            self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self.times.append(time.perf_counter())
        self.completion = chunk.completion
        self.progress(len(chunk.token_ids))


def run_streaming(
    workload: Workload,
    engine: InferenceEngine,
    traffic: Traffic = Traffic(),
    progress: Callable[[int], object] = lambda tokens: None,
) -> tuple[Run, int]:
    """Serve the workload through a `StreamingServer`: the run, timed by its consumers, and how many requests
    were refused.

    progress: called with the tokens of each chunk, from the consumers' threads.
    Raises whatever ended a consumer's stream early, and ValueError if every request was refused.
    """
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    before = engine.stats()
    server = StreamingServer(
        engine,
        max_inflight_requests=traffic.max_inflight_requests,
        stream_interval=traffic.stream_interval,
        tokenize_workers=traffic.tokenize_workers,
    )
    gc.collect()  # or what was left before is cleared away in the middle of it: all streams wait for that
    read = read_by_tasks if traffic.consumers == "tasks" else read_by_threads
    consumers = read(server, workload, progress)
    if not consumers:
        raise ValueError("every request was refused")
    felt = felt_latency(consumers)
    run = make_run(before, engine.stats(), [c.completion for c in consumers], felt, felt.span)
    return run, len(workload.requests) - len(consumers)


def read_by_threads(
    server: StreamingServer, workload: Workload, progress: Callable[[int], object]
) -> list[Consumer]:
    """Serve each request that is not refused to a thread of its own, then close the server; the consumers, in
    order of arrival."""
    consumers, reading = [], []
    # On an error the server closes first, which ends the streams that the pool's threads read.
    with ThreadPoolExecutor(len(workload.requests)) as pool, server:
        started = time.perf_counter()
        for request in workload.requests:
            time.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumer = submitted(server.submit, request, progress)
            if consumer is not None:
                consumers.append(consumer)
                reading.append(pool.submit(consumer.read))
        for each in reading:
            each.result()
    return consumers


def read_by_tasks(
    server: StreamingServer, workload: Workload, progress: Callable[[int], object]
) -> list[Consumer]:
    """Serve each request that is not refused to a task, all on one event loop, then close the server; the
    consumers, in order of arrival."""

    async def read_all() -> list[Consumer]:
        consumers, reading = [], []
        started = time.perf_counter()
        for request in workload.requests:
            await asyncio.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumer = submitted(server.submit_async, request, progress)
            if consumer is not None:
                consumers.append(consumer)
                reading.append(asyncio.create_task(consumer.read_async()))
        await asyncio.gather(*reading)
        return consumers

    # On a thread of its own, for in a notebook this one runs an event loop already.
    with ThreadPoolExecutor(1) as pool, server:
        return pool.submit(asyncio.run, read_all()).result()


def submitted(
    submit: Callable[..., Stream], request: Request, progress: Callable[[int], object]
) -> Consumer | None:
    """Submit a request; its consumer, or None if it was refused."""
    try:
        return Consumer(submit(request.prompt, request.params), progress)
    except OverloadedError:  # counted: the caller reports it
        return None


def felt_latency(consumers: list[Consumer]) -> LatencyMetrics:
    """Latency metrics from `submit` on, by the times at which consumers had their tokens.

    ITL: the gaps between chunks, which are single tokens unless the stream interval is larger.
    """
    timings = [Timing(c.stream.submitted, c.completion.timing.admitted, tuple(c.times)) for c in consumers]
    return metrics_of(timings, [len(c.completion.token_ids) for c in consumers])
