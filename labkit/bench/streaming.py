"""A workload served by a streaming server: a worker thread drives the engine, each request has a consumer."""

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labkit.bench.workload import Workload, make_run, metrics_of
from labkit.engine import AsyncTokenStream, Chunk, Completion, InferenceEngine, StreamingServer, TokenStream
from labkit.engine.request import Timing
from labkit.results.runs import LatencyMetrics, Run

CONSUMERS = ("threads", "tasks")


@dataclass
class Consumer:
    """Reads one stream to its end, noting when each chunk came."""

    stream: TokenStream | AsyncTokenStream
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
    consumers: str = "threads",
    tokenize_workers: int = 0,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Run:
    """Serve the workload through a `StreamingServer`: the run, timed by its consumers.

    consumers: "threads", one per request, or "tasks", one per request on one event loop. tokenize_workers: as
    the server takes it. progress: called with the tokens of each chunk, from the consumers' threads. Raises
    whatever ended a consumer's stream early.
    """
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    before = engine.stats()
    server = StreamingServer(engine, tokenize_workers=tokenize_workers)
    gc.collect()  # or what was left before is cleared away in the middle of it: all streams wait for that
    read = read_by_tasks if consumers == "tasks" else read_by_threads
    served = read(server, workload, progress)
    felt = felt_latency(served)
    return make_run(before, engine.stats(), [each.completion for each in served], felt, felt.span)


def read_by_threads(
    server: StreamingServer, workload: Workload, progress: Callable[[int], object]
) -> list[Consumer]:
    """Serve each request to a thread, then close the server; the consumers, in order of arrival."""
    consumers, reading = [], []
    # On an error the server closes first, which ends the streams that the pool's threads read.
    with ThreadPoolExecutor(len(workload.requests)) as pool, server:
        started = time.perf_counter()
        for request in workload.requests:
            time.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumers.append(Consumer(server.submit(request.prompt, request.params), progress))
            reading.append(pool.submit(consumers[-1].read))
        for each in reading:
            each.result()
    return consumers


def read_by_tasks(
    server: StreamingServer, workload: Workload, progress: Callable[[int], object]
) -> list[Consumer]:
    """Serve each request to a task, all on one event loop, then close the server; the consumers, in order of
    arrival."""

    async def read_all() -> list[Consumer]:
        consumers, reading = [], []
        started = time.perf_counter()
        for request in workload.requests:
            await asyncio.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumers.append(Consumer(server.submit_async(request.prompt, request.params), progress))
            reading.append(asyncio.create_task(consumers[-1].read_async()))
        await asyncio.gather(*reading)
        return consumers

    # On a thread of its own, for in a notebook this one runs an event loop already.
    with ThreadPoolExecutor(1) as pool, server:
        return pool.submit(asyncio.run, read_all()).result()


def felt_latency(consumers: list[Consumer]) -> LatencyMetrics:
    """Latency metrics from `submit` on, by the times at which consumers had their tokens.

    ITL: the gaps between chunks, which are single tokens unless the stream interval is larger.
    """
    timings = [Timing(c.stream.submitted, c.completion.timing.admitted, tuple(c.times)) for c in consumers]
    return metrics_of(timings, [len(c.completion.token_ids) for c in consumers])
