"""A workload served as a server does it: a worker thread drives the engine, each request has its consumer."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from labkit.bench.metrics import LatencyMetrics
from labkit.bench.workload import Run, Workload, make_run
from labkit.engine import Completion, InferenceEngine, StreamingServer, TokenStream
from labkit.errors import OverloadedError


@dataclass(frozen=True)
class Traffic:
    """How requests come and how their tokens go.

    submit_interval: seconds between arrivals. The others are `StreamingServer`'s.
    """

    submit_interval: float = 0.0
    max_inflight_requests: int | None = None
    stream_interval: int = 1
    tokenize_workers: int = 0


@dataclass
class Consumer:
    """Reads one stream to its end, noting when each chunk came."""

    stream: TokenStream
    progress: Callable[[int], object]
    times: list[float] = field(default_factory=list)  # of each chunk with tokens
    completion: Completion | None = None
    error: Exception | None = None

    def run(self) -> None:
        try:
            for chunk in self.stream:
                if chunk.token_ids:
                    self.times.append(time.perf_counter())
                self.completion = chunk.completion
                self.progress(len(chunk.token_ids))
        except Exception as error:  # told by the thread that waits for this one
            self.error = error

    @property
    def num_tokens(self) -> int:
        return len(self.completion.token_ids)


def run_streaming(
    workload: Workload,
    engine: InferenceEngine,
    traffic: Traffic = Traffic(),
    progress: Callable[[int], object] = lambda tokens: None,
) -> tuple[Run, int]:
    """Serve the workload; the run, timed by the consumers, and how many requests were refused.

    progress: called with the tokens of each chunk, from the consumers' threads.
    Raises whatever ended a consumer's stream early, and ValueError if every request was refused.
    """
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    before = engine.stats()
    consumers: list[Consumer] = []
    threads: list[threading.Thread] = []
    with StreamingServer(
        engine,
        max_inflight_requests=traffic.max_inflight_requests,
        stream_interval=traffic.stream_interval,
        tokenize_workers=traffic.tokenize_workers,
    ) as server:
        for prompt in workload.prompts:
            try:
                stream = server.submit(prompt, workload.params)
            except OverloadedError:  # counted: the caller reports it
                continue
            finally:
                time.sleep(traffic.submit_interval)
            consumers.append(Consumer(stream, progress))
            threads.append(threading.Thread(target=consumers[-1].run))
            threads[-1].start()
        for thread in threads:
            thread.join()
    for consumer in consumers:
        if consumer.error is not None:
            raise consumer.error
    if not consumers:
        raise ValueError("every request was refused")
    run = make_run(before, engine.stats(), [c.completion for c in consumers], felt_latency(consumers))
    return run, len(workload.prompts) - len(consumers)


def felt_latency(consumers: list[Consumer]) -> LatencyMetrics:
    """Latency from `submit` on, at the moments when consumers had their tokens.

    ITL: the gaps between chunks, which are single tokens unless the stream interval is larger.
    """
    submitted = [consumer.stream.submitted for consumer in consumers]
    return LatencyMetrics(
        ttft=tuple(c.times[0] - s for c, s in zip(consumers, submitted, strict=True)),
        queue_wait=tuple(c.completion.timing.admitted - s for c, s in zip(consumers, submitted, strict=True)),
        tpot=tuple((c.times[-1] - c.times[0]) / (c.num_tokens - 1) for c in consumers if c.num_tokens > 1),
        itl=tuple(later - earlier for c in consumers for earlier, later in pairwise(c.times)),
        latency=tuple(c.times[-1] - s for c, s in zip(consumers, submitted, strict=True)),
        tokens=sum(c.num_tokens for c in consumers),
        span=max(c.times[-1] for c in consumers) - min(submitted),
    )
