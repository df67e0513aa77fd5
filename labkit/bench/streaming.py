"""A workload served by a streaming server: a worker thread drives the engine, each request has a consumer, a
thread or a task. `RunStreaming` is the write-ups' command."""

import asyncio
import gc
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from labkit.bench.flags import Kind, flag
from labkit.bench.scheduler import RunFlags
from labkit.bench.workload import Workload, make_run, metrics_of
from labkit.checks import real_number, whole_number
from labkit.engine import AsyncTokenStream, Chunk, Completion, InferenceEngine, StreamingServer, TokenStream
from labkit.engine.request import Timing
from labkit.errors import OptionError
from labkit.results.runs import PERCENTILES, LatencyMetrics, Run

CONSUMERS = ("threads", "tasks")
AN_HOUR = 3_600_000  # milliseconds
MOST_THREADS = 10_000


@dataclass
class Consumer:
    """Reads one stream to its end, noting when each chunk came."""

    stream: TokenStream | AsyncTokenStream
    times: list[float] = field(default_factory=list)  # of each chunk with tokens
    completion: Completion | None = None

    def read(self) -> None:
        """Read a `TokenStream` to its end. Raises what ended it early."""
        for chunk in self.stream:
            self._take(chunk)

    async def read_async(self) -> None:
        """Read an `AsyncTokenStream` to its end. Raises what ended it early."""
        async for chunk in self.stream:
            self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self.times.append(time.perf_counter())
        self.completion = chunk.completion


def run_streaming(
    workload: Workload, engine: InferenceEngine, tokenize_workers: int = 0, consumers: str = "tasks"
) -> list[Consumer]:
    """Serve each request to a consumer, then close the server; the consumers, in order of arrival.

    tokenize_workers: as the server takes it. consumers: "tasks" of one event loop, or "threads". Raises
    whatever ended a consumer's stream early.
    """
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    server = StreamingServer(engine, tokenize_workers=tokenize_workers)
    gc.collect()  # or what was left before is cleared away in the middle of it: all streams wait for that
    return (read_by_tasks if consumers == "tasks" else read_by_threads)(server, workload)


def read_by_threads(server: StreamingServer, workload: Workload) -> list[Consumer]:
    consumers, reading = [], []
    # On an error the server closes first, which ends the streams that the pool's threads read.
    with ThreadPoolExecutor(len(workload.requests)) as pool, server:
        started = time.perf_counter()
        for request in workload.requests:
            time.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumers.append(Consumer(server.submit(request.prompt, request.params)))
            reading.append(pool.submit(consumers[-1].read))
        for each in reading:
            each.result()
    return consumers


def read_by_tasks(server: StreamingServer, workload: Workload) -> list[Consumer]:
    async def read_all() -> list[Consumer]:
        consumers, reading = [], []
        started = time.perf_counter()
        for request in workload.requests:
            await asyncio.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            consumers.append(Consumer(server.submit_async(request.prompt, request.params)))
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


@dataclass
class RunStreaming(RunFlags):
    """Serve requests from a worker thread; each has a consumer, a thread or an asyncio task.

    Here a figure means something else than the write-ups': every moment is when the consumer has the token in
    hand, not when the worker has it; TTFT runs from submission, tokenizing and queueing included, and is
    shown whole and in its two parts; tokens are counted as ids; ITL pools the gaps of all requests.
    Percentiles pool the requests of all measured runs.
    """

    kind = "streaming"

    tokenize_workers: int = flag(
        0, "this many threads tokenize; with 0, the thread that submits does", Kind(whole_number(0, 256), "N")
    )
    submit_interval_ms: float = flag(
        0.0,
        "a request arrives this long after the one before; with 0, all arrive together",
        Kind(real_number(0, AN_HOUR), "MS"),
    )
    consumers: str = flag(
        "threads", "each request has a thread, or a task of one event loop", choices=CONSUMERS
    )

    def run(self) -> None:
        """Raises OptionError for more threads than MOST_THREADS, and for flags that contradict each other."""
        if self.consumers == "threads" and self.num_requests > MOST_THREADS:
            raise OptionError(f"a thread per request is for {MOST_THREADS:,} at most: add --consumers tasks")
        if self.rate and self.submit_interval_ms:
            raise OptionError(
                "--submit-interval-ms and --load arrivals both say when requests arrive: give one"
            )
        super().run()

    def workload(self) -> Workload:
        made, interval = super().workload(), self.submit_interval_ms / 1e3
        if not interval:
            return made
        spaced = tuple(replace(each, arrives_at=i * interval) for i, each in enumerate(made.requests))
        return replace(made, requests=spaced)

    def serve(self, workload: Workload, engine: InferenceEngine) -> Run:
        before = engine.stats()
        served = run_streaming(workload, engine, self.tokenize_workers, self.consumers)
        felt = felt_latency(served)
        return make_run(before, engine.stats(), [each.completion for each in served], felt, felt.span)

    def print_summary(self, runs: Sequence[Run]) -> None:
        names = "/".join(f"p{p}" for p in PERCENTILES)
        latencies = [run.latency for run in runs]

        def line(name: str, unit: str, samples: list[float]) -> None:
            values = np.percentile(samples, PERCENTILES) if samples else []
            print(f"{name} {names}: {'/'.join(f'{1e3 * value:.2f}' for value in values) or '-'} {unit}")

        print("=== streaming summary ===")
        for number, run in enumerate(runs, start=1):
            print(
                f"run{number} Throughput: {run.throughput:.2f} tokens/s | "
                f"TPOT p50: {1e3 * np.median(run.latency.tpot or [np.nan]):.2f} ms/token"
            )
        print(f"avg  Throughput: {np.mean([run.throughput for run in runs]):.2f} tokens/s")
        print(f"Completion tokens a run: {[run.tokens for run in runs]}")
        line("TTFT", "ms", [t for m in latencies for t in m.ttft])
        line("  Queue wait", "ms", [t for m in latencies for t in m.queue_wait])
        to_first = [t - wait for m in latencies for t, wait in zip(m.ttft, m.queue_wait, strict=True)]
        line("  Prefill->first token", "ms", to_first)
        line("TPOT", "ms/token", [t for m in latencies for t in m.tpot])
        line("ITL", "ms", [t for m in latencies for t in m.itl])
        line("Latency", "ms", [t for m in latencies for t in m.latency])
