"""streaming: serves requests from a worker thread; each has a consumer, a thread or an asyncio task.

Here a figure means something else than the write-ups': every moment is when the consumer has the token in
hand, not when the worker has it; TTFT runs from submission, tokenizing and queueing included, and is shown
whole and in its two parts; tokens are counted as ids; ITL pools the gaps of all requests.
Percentiles pool the requests of all measured runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from labkit.bench.commands.arguments import RunFlags, workload_of
from labkit.bench.commands.flags import Kind, flag
from labkit.bench.commands.scheduler import finish, repeat
from labkit.bench.limit import measure_bandwidth
from labkit.bench.streaming import CONSUMERS, run_streaming
from labkit.bench.workload import Workload
from labkit.errors import OptionError
from labkit.flag_types import real_number, whole_number
from labkit.ladder import LADDER
from labkit.results.runs import PERCENTILES, Run

AN_HOUR = 3_600_000  # milliseconds
MOST_THREADS = 10_000


@dataclass
class Settings(RunFlags):
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


def run(args: Settings) -> None:
    """Raises OptionError for more threads than MOST_THREADS."""
    if args.consumers == "threads" and args.num_requests > MOST_THREADS:
        raise OptionError(f"a thread per request is for {MOST_THREADS:,} at most: add --consumers tasks")
    workload = spaced(workload_of(args), args.submit_interval_ms / 1e3)
    engine = workload.make_engine(LADDER[args.rung].options)
    bandwidth = measure_bandwidth(engine.device)
    once = partial(run_streaming, workload, engine, args.consumers, args.tokenize_workers)
    runs = repeat(args, workload, once)
    print(f"{engine.model}, rung {args.rung}")
    print("=== streaming summary ===")
    for number, made in enumerate(runs, start=1):
        print(
            f"run{number} Throughput: {made.throughput:.2f} tokens/s | "
            f"TPOT p50: {1e3 * np.median(made.latency.tpot or [np.nan]):.2f} ms/token"
        )
    print_summary(runs)
    finish("streaming", args, workload, runs, bandwidth)


def spaced(workload: Workload, interval: float) -> Workload:
    """The workload, each request `interval` seconds after the one before.

    Raises OptionError if its load says already when requests arrive.
    """
    if not interval:
        return workload
    if workload.has_arrivals:
        raise OptionError("--submit-interval-ms and --load arrivals both say when requests arrive: give one")
    arrivals = (replace(request, arrives_at=i * interval) for i, request in enumerate(workload.requests))
    return replace(workload, requests=tuple(arrivals))


def print_summary(runs: Sequence[Run]) -> None:
    names = "/".join(f"p{p}" for p in PERCENTILES)

    def line(name: str, unit: str, samples: list[float]) -> None:
        values = [f"{1e3 * value:.2f}" for value in np.percentile(samples, PERCENTILES)] if samples else ["-"]
        print(f"{name} {names}: {'/'.join(values)} {unit}")

    latencies = [made.latency for made in runs]
    mean = np.mean([made.throughput for made in runs])
    print(f"avg  Throughput: {mean:.2f} tokens/s")
    print(f"Completion tokens a run: {[made.tokens for made in runs]}")
    line("TTFT", "ms", [t for m in latencies for t in m.ttft])
    line("  Queue wait", "ms", [t for m in latencies for t in m.queue_wait])
    to_first = [t - wait for m in latencies for t, wait in zip(m.ttft, m.queue_wait, strict=True)]
    line("  Prefill->first token", "ms", to_first)
    line("TPOT", "ms/token", [t for m in latencies for t in m.tpot])
    line("ITL", "ms", [t for m in latencies for t in m.itl])
    line("Latency", "ms", [t for m in latencies for t in m.latency])
