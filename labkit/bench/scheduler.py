"""One rung on a workload, run after run, as the write-ups' commands measure it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from tqdm import tqdm

from labkit.bench.flags import (
    BATCH,
    NUMBER,
    RATE,
    RungFlag,
    WorkloadFlags,
    flag,
    replaced_default,
    workload_of,
)
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import ALIKE, LOADS
from labkit.bench.workload import Workload
from labkit.engine import InferenceEngine
from labkit.errors import OptionError
from labkit.ladder import LADDER
from labkit.results.runs import Run, RungRun, total_paths


@dataclass
class RunFlags(WorkloadFlags, RungFlag):
    """A workload that runs several times on a rung, with the flags of the write-ups."""

    load: str = replaced_default(WorkloadFlags, "load", ALIKE, choices=tuple(LOADS))
    rate: float | None = flag(
        None, "with --load arrivals, this many requests arrive per second (default: none)", RATE
    )
    max_new_tokens: int = replaced_default(WorkloadFlags, "max_new_tokens", 64, kind=None)
    prefill_max_batch_size: int | None = flag(
        None, "at most this many requests are admitted in one step (default: as --max-batch-size)", BATCH
    )
    prefill_admission_policy: str = flag(
        "fifo",
        "requests are admitted in order of arrival, or the shortest prompts of a window first",
        choices=("fifo", "pack"),
    )
    paged_attn: bool = flag(
        False, "this flag is for the write-ups' command lines; paged attention is always on here"
    )
    warmup_runs: int = flag(1, "this many runs come first and are not measured", NUMBER)
    repeat_runs: int = flag(3, "this many runs are measured")

    def run(self) -> None:
        workload = self.workload()
        engine = workload.make_engine(LADDER[self.rung].options)
        bandwidth = measure_bandwidth(engine.device)
        runs: list[Run] = []
        count = self.warmup_runs + self.repeat_runs
        desc, total = f"{self.warmup_runs} + {self.repeat_runs} runs", count * sum(workload.max_new_tokens)
        with tqdm(total=total, unit=" tokens", desc=desc) as bar, self.until_interrupted(runs):
            for number in range(count):
                made = self.serve(workload, engine)
                bar.update(made.tokens)
                if number >= self.warmup_runs:
                    runs.append(made)
        print(f"{engine.model}, rung {self.rung}")
        self.print_summary(runs)
        print(f"Append paths, all measured runs: {total_paths(runs)}")
        limits = [workload.limit(bandwidth.copy, run=run) for run in runs]
        samples = [
            RungRun(**vars(run), rung=self.rung, limit_seconds=limit.seconds)
            for run, limit in zip(runs, limits, strict=True)
        ]
        if all(run.decoded_tokens for run in runs):
            limit, *_ = limits
            reached = 100 * median(run.limit_seconds / run.decode_seconds for run in samples)
            print(
                f"Limit of decode: {limit.tokens_per_second:,.0f} tokens/s ({limit.num_bytes / 1e9:,.1f} GB "
                f"at {bandwidth}, measured); reached {reached:.1f} %"
            )
        self.record_if_asked(samples, bandwidth)

    def workload(self) -> Workload:
        """Raises LabkitError if model, device or load cannot be had."""
        if (self.load == "arrivals") != (self.rate is not None):
            raise OptionError("--load arrivals and --rate, the requests per second, are given together")
        made = workload_of(self, self.rate)
        scheduler = replace(
            made.scheduler,
            prefill_max_batch_size=self.prefill_max_batch_size or self.max_batch_size,
            admission_policy=self.prefill_admission_policy,
        )
        return replace(made, scheduler=scheduler)

    def serve(self, workload: Workload, engine: InferenceEngine) -> Run:
        """One run."""
        raise NotImplementedError

    def print_summary(self, runs: Sequence[Run]) -> None:
        """The lines of the write-ups."""
        raise NotImplementedError


@dataclass
class RunScheduler(RunFlags):
    """Serve requests that all start together, with `engine.step()` in a loop until all are done.

    The summary has the write-ups' lines. Here a figure means something else than theirs: first tokens come
    from the prefill, so decode throughput leaves them out (theirs counts them in the decode time's tokens);
    TTFT runs from a request's arrival, so it includes the wait in the queue (theirs is the prefill alone);
    tokens are counted as ids, never by encoding text again; decode time is the sum of the engine's decode
    steps. TTFT, TPOT and latency are a run's median; p50 and mean are over runs.
    """

    kind = "scheduler"

    mode: str = flag(
        "online",
        "requests join and leave the batch at any step (default: %(default)s, the only one)",
        choices=("online",),
    )

    def serve(self, workload: Workload, engine: InferenceEngine) -> Run:
        return workload.run(engine)

    def print_summary(self, runs: Sequence[Run]) -> None:
        def line(name: str, unit: str, digits: int, value: Callable[[Run], float]) -> None:
            values = [value(run) for run in runs]
            print(f"{name} p50/mean: {median(values):.{digits}f}/{mean(values):.{digits}f} {unit}")

        print(f"=== {self.mode} summary ===")
        print(f"Warmup runs: {self.warmup_runs}")
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
