"""scheduler: serves requests that all start together, with `engine.step()` in a loop until all are done.

The summary has the write-ups' lines. Here a figure means something else than theirs:
first tokens come from the prefill, so decode throughput leaves them out (theirs counts them in the decode
time's tokens); TTFT runs from a request's arrival, so it includes the wait in the queue (theirs is the
prefill alone); tokens are counted as ids, never by encoding text again; decode time is the sum of the
engine's decode steps. TTFT, TPOT and latency are a run's median; p50 and mean are over runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from tqdm import tqdm

from labkit.bench.commands.arguments import RunFlags, workload_of
from labkit.bench.commands.flags import flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.limit import Bandwidth, measure_bandwidth
from labkit.bench.workload import Workload
from labkit.ladder import LADDER
from labkit.results.runs import Run, RungRun, total_paths


@dataclass
class Settings(RunFlags):
    mode: str = flag(
        "online",
        "requests join and leave the batch at any step (default: %(default)s, the only one)",
        choices=("online",),
    )


def run(args: Settings) -> None:
    workload = workload_of(args)
    engine = workload.make_engine(LADDER[args.rung].options)
    bandwidth = measure_bandwidth(engine.device)
    runs = repeat(args, workload, lambda progress: workload.run(engine, progress))
    print(f"{engine.model}, rung {args.rung}")
    print_summary(runs, args)
    finish("scheduler", args, workload, runs, bandwidth)


def repeat(
    args: Settings, workload: Workload, run_once: Callable[[Callable[[int], object]], Run]
) -> list[Run]:
    """Make the warm-up runs and the measured runs, with one progress bar; return the measured ones, after
    Ctrl-C those that are complete."""
    runs: list[Run] = []
    count = args.warmup_runs + args.repeat_runs
    total = count * sum(workload.max_new_tokens)
    desc = f"{args.warmup_runs} + {args.repeat_runs} runs"
    with tqdm(total=total, unit=" tokens", desc=desc) as bar, args.until_interrupted(runs):
        for number in range(count):
            made = run_once(bar.update)
            if number >= args.warmup_runs:
                runs.append(made)
    return runs


def print_summary(runs: Sequence[Run], args: Settings) -> None:

    def line(name: str, unit: str, digits: int, value: Callable[[Run], float]) -> None:
        values = [value(run) for run in runs]
        print(f"{name} p50/mean: {median(values):.{digits}f}/{mean(values):.{digits}f} {unit}")

    print(f"=== {args.mode} summary ===")
    print(f"Warmup runs: {args.warmup_runs}")
    print(f"Measured runs: {len(runs)}")
    line("Decode time", "s", 6, lambda run: run.decode_seconds)
    line("Total time", "s", 6, lambda run: run.seconds)
    if all(run.decoded_tokens for run in runs):
        line("Throughput(completion,decode)", "tokens/s", 2, lambda run: run.decode_rate)
    line("Throughput(completion,total)", "tokens/s", 2, lambda run: run.throughput)
    line("TTFT", "ms", 2, lambda run: 1e3 * median(run.latency.ttft))
    if all(run.latency.tpot for run in runs):
        line("TPOT", "ms/token", 2, lambda run: 1e3 * median(run.latency.tpot))
    line("Latency", "ms", 2, lambda run: 1e3 * median(run.latency.latency))


def finish(kind: str, args: Settings, workload: Workload, runs: Sequence[Run], bandwidth: Bandwidth) -> None:
    """Print which append paths ran and how near decoding comes to its limit; write a record, if asked for."""
    print(f"Append paths, all measured runs: {total_paths(runs)}")
    if all(run.decoded_tokens for run in runs):
        limit = workload.limit(runs[0], bandwidth.copy)
        reached = median(workload.limit(run, bandwidth.copy).seconds / run.decode_seconds for run in runs)
        print(
            f"Limit of decode: {limit.tokens_per_second:,.0f} tokens/s ({limit.num_bytes / 1e9:,.1f} GB at "
            f"{bandwidth}, measured); reached {100 * reached:.1f} %"
        )
    samples = [run_sample(args.rung, workload, run, bandwidth.copy) for run in runs]
    record_if_asked(args, kind, workload.model.device, samples, bandwidth)
    if args.json:
        print(f"Record: {args.json}")


def run_sample(rung: str, workload: Workload, run: Run, bandwidth: float) -> RungRun:
    """A run as a record holds it, with its limit at this bandwidth in bytes per second."""
    return RungRun(**vars(run), rung=rung, limit_seconds=workload.limit(run, bandwidth).seconds)
