"""streaming: serves requests from a worker thread; each has a consumer, a thread or an asyncio task.

Here a figure means something else than the write-ups': every moment is when the consumer has the token in
hand, not when the worker has it; TTFT runs from submission, tokenizing and queueing included, and is shown
whole and in its two parts; tokens are counted as ids; ITL pools the gaps of all requests (between chunks, if
--stream-interval is more than 1). Percentiles pool the requests of all measured runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.bench.commands.arguments import COUNT, RunFlags, workload_of
from labkit.bench.commands.flags import Kind, flag
from labkit.bench.commands.scheduler import finish, print_limit, repeat
from labkit.bench.limit import measure_bandwidth
from labkit.bench.streaming import CONSUMERS, Traffic, run_streaming
from labkit.bench.workload import Workload
from labkit.errors import OptionError
from labkit.flag_types import real_number, whole_number
from labkit.ladder import LADDER
from labkit.results.runs import PERCENTILES, Run

AN_HOUR = 3_600_000  # milliseconds
MOST_THREADS = 10_000


@dataclass
class Settings(RunFlags):
    """The command's flags."""

    tokenize_workers: int = flag(
        0, "this many threads tokenize; with 0, the thread that submits does", Kind(whole_number(0, 256), "N")
    )
    submit_interval_ms: float = flag(
        0.0,
        "a request arrives this long after the one before; with 0, all arrive together",
        Kind(real_number(0, AN_HOUR), "MS"),
    )
    max_inflight_requests: int | None = flag(
        None, "at most this many requests are unfinished; more are refused (default: any number)", COUNT
    )
    stream_interval: int = flag(1, "a chunk has this many tokens", COUNT)
    consumers: str = flag(
        "threads", "each request has a thread, or a task of one event loop", choices=CONSUMERS
    )


def run(args: Settings) -> None:
    """Serve the workload on a rung several times and print a summary; write what was asked for.

    Raises OptionError for more threads than MOST_THREADS.
    """
    if args.consumers == "threads" and args.num_requests > MOST_THREADS:
        raise OptionError(f"a thread per request is for {MOST_THREADS:,} at most: add --consumers tasks")
    workload = spaced(workload_of(args), args.submit_interval_ms / 1e3)
    engine = workload.make_engine(LADDER[args.rung].options)
    bandwidth = measure_bandwidth(engine.device)
    traffic = Traffic(
        max_inflight_requests=args.max_inflight_requests,
        stream_interval=args.stream_interval,
        tokenize_workers=args.tokenize_workers,
        consumers=args.consumers,
    )
    refused = []

    def run_once(progress: Callable[[int], object]) -> Run:
        made, num_refused = run_streaming(workload, engine, traffic, progress)
        refused.append(num_refused)
        return made

    runs = repeat(args, workload, run_once)
    print(f"{engine.model}, rung {args.rung}")
    print("=== streaming summary ===")
    for number, made in enumerate(runs, start=1):
        print(
            f"run{number} Throughput: {made.throughput:.2f} tokens/s | "
            f"TPOT p50: {1e3 * np.median(made.latency.tpot or [np.nan]):.2f} ms/token"
        )
    print_summary(runs)
    if any(refused):
        print(f"Refused for --max-inflight-requests, a run: {refused[args.warmup_runs :]}")
    print_limit(workload, runs, bandwidth)
    finish("streaming", args, workload, engine, runs, bandwidth)


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
    """Print the lines of the write-ups' summary."""
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
