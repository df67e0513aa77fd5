"""A workload served by a streaming server: a worker thread drives the engine, each request has a task that
reads its tokens."""

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labkit.bench.workload import Workload, metrics_of
from labkit.engine import AsyncTokenStream, Completion, InferenceEngine, StreamingServer
from labkit.engine.request import Timing
from labkit.results.runs import LatencyMetrics


@dataclass
class Consumer:
    """Reads one stream to its end, noting when each chunk came."""

    stream: AsyncTokenStream
    times: list[float] = field(default_factory=list)  # of each chunk with tokens
    completion: Completion | None = None

    async def read(self) -> None:
        """Read the stream to its end. Raises what ended it early."""
        async for chunk in self.stream:
            if chunk.token_ids:
                self.times.append(time.perf_counter())
            self.completion = chunk.completion


def run_streaming(workload: Workload, engine: InferenceEngine, tokenize_workers: int = 0) -> list[Consumer]:
    """Serve each request to a task, all on one event loop; the consumers, in order of arrival.

    tokenize_workers: as the server takes it. Raises whatever ended a consumer's stream early.
    """
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    server = StreamingServer(engine, tokenize_workers=tokenize_workers)
    gc.collect()  # or what was left before is cleared away in the middle of it: all streams wait for that

    async def read_all() -> list[Consumer]:
        consumers, reading = [], []
        started = time.perf_counter()
        for request in workload.requests:
            await asyncio.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumers.append(Consumer(server.submit_async(request.prompt, request.params)))
            reading.append(asyncio.create_task(consumers[-1].read()))
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
