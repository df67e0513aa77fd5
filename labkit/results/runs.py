"""Runs of a workload, rung by rung."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import median
from typing import Self

import numpy as np
import pandas as pd

from labkit.errors import RecordError
from labkit.results.comparison import Comparison
from labkit.results.record import Record, table_of
from labkit.results.typed import read_as, read_fields

PERCENTILES = (50, 90, 95, 99)
ROUNDED = ("ttft", "queue_wait", "tpot", "latency")  # of the latencies: recorded to a tenth of a microsecond


@dataclass(frozen=True)
class LatencyMetrics:
    """What users of an engine feel, in seconds: a number per request, and the gaps between its tokens.

    TTFT  time to first token: from arrival, so waiting in the queue counts.
    TPOT  time per output token: from the first token to the last, over the tokens between.
    ITL   inter-token latency: each gap between two tokens; the gaps of all requests are pooled.
    Latency, without more: from arrival to the last token.
    """

    ttft: tuple[float, ...]
    queue_wait: tuple[float, ...]  # the part of TTFT before the prefill began
    tpot: tuple[float, ...]  # of the requests with two tokens or more
    itl: tuple[float, ...]
    latency: tuple[float, ...]
    tokens: int
    span: float  # from the first arrival to the last token

    @property
    def throughput(self) -> float:
        """Tokens per second, all requests together."""
        return self.tokens / self.span

    def table(self) -> pd.DataFrame:
        """Percentiles of each metric in milliseconds: a row per metric, a column per percentile."""
        rows = {
            "TTFT": self.ttft,
            "  of it queue wait": self.queue_wait,
            "TPOT": self.tpot,
            "ITL": self.itl,
            "Latency": self.latency,
        }
        return pd.DataFrame(
            {f"p{p} (ms)": {n: np.percentile(v, p) * 1e3 for n, v in rows.items() if v} for p in PERCENTILES}
        ).round(2)


@dataclass(frozen=True)
class Run:
    """One run of a workload through an engine. Times are in seconds."""

    seconds: float  # from the first arrival until the last token was handed out
    prefill_seconds: float
    decode_seconds: float  # 0 where nothing was decoded
    decoded_tokens: int  # by decode steps; a request's first token comes from its prefill
    decode_steps: int
    append_paths: dict[str, int]  # how often each ran
    prompt_lens: tuple[int, ...]  # of each request, in the order they ended
    new_tokens: tuple[int, ...]  # tokens that each request made
    latency: LatencyMetrics

    @property
    def tokens(self) -> int:
        """Tokens generated, counted as ids."""
        return sum(self.new_tokens)

    @property
    def throughput(self) -> float:
        """Tokens per second of the whole run."""
        return self.tokens / self.seconds

    @property
    def decode_rate(self) -> float:
        """Tokens per second of the decode steps alone. Raises RecordError if none was decoded."""
        if not self.decode_seconds:
            raise RecordError("a run of the record decoded nothing, so it has no rate")
        return self.decoded_tokens / self.decode_seconds

    @property
    def step_us(self) -> float:
        """Microseconds per decode step, the mean of the run."""
        return 1e6 * self.decode_seconds / self.decode_steps

    @property
    def prefill_share(self) -> float:
        """The part of the run's time that prompts take, 0 to 1."""
        return self.prefill_seconds / self.seconds

    @property
    def gaps_us(self) -> list[int]:
        """All gaps between two tokens in microseconds, one request after another."""
        return [round(1e6 * seconds) for seconds in self.latency.itl]

    def to_dict(self) -> dict:
        """The JSON form: raw numbers, and the gaps between tokens in microseconds, as `grouped` puts them."""
        raw = {name: value for name, value in vars(self).items() if name != "latency"} | {
            "tokens": self.tokens
        }
        rounded = {name: [round(s, 7) for s in getattr(self.latency, name)] for name in ROUNDED}
        return {**raw, **rounded, "itl_us": grouped(self.gaps_us, self.new_tokens)}

    @classmethod
    def from_dict(cls, raw: dict, where: str = "the record") -> Self:
        """A run from its JSON form. Raises RecordError saying what is wrong with it, and `where` it is."""
        groups = read_as(tuple[tuple[int, tuple[float, ...]], ...], raw.get("itl_us"), f"{where}.itl_us")
        most = len(read_as(list, raw.get("new_tokens"), f"{where}.new_tokens"))
        if any(count > most for count, _ in groups):  # or a wrong number would make a list of that length
            raise RecordError(f"{where}.itl_us has the gaps of more requests than new_tokens")
        itl = tuple(gap / 1e6 for count, us in groups for gap in us * count)
        latency = {**raw, "itl": itl, "span": raw.get("seconds")}
        return read_fields(cls, {**raw, "latency": latency}, where)


@dataclass(frozen=True)
class RungRun(Run):
    """A workload's run on a rung. limit_seconds: the least that decoding its tokens can take there."""

    rung: str
    limit_seconds: float


class RunsRecord(Record):
    """What `ladder`, `scheduler` or `streaming` of `python -m labkit.bench` recorded: runs by rung."""

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order of the record."""
        return list(self.samples)

    def runs_of(self, rung: str) -> list[Run]:
        """A rung's runs, in the order of the record. Raises RecordError if there are none."""
        return self.only(rung=rung)

    @property
    def rates(self) -> dict[str, list[float]]:
        """Decode tokens per second of each run, by rung. Raises RecordError if a run decoded nothing."""
        return {rung: [run.decode_rate for run in self.runs_of(rung)] for rung in self.distinct("rung")}

    def rate(self, rung: str) -> float:
        """A rung's decode tokens per second, the median run."""
        return self.median("decode_rate", rung=rung)

    @property
    def limit(self) -> float:
        """The most decode tokens per second that the device allows for this workload."""
        return median(sample.decoded_tokens / sample.limit_seconds for sample in self.samples)

    def share_of_limit(self, rung: str) -> float:
        """A rung's decode rate over the most that the device allows, 0 to 1."""
        return self.rate(rung) / self.limit

    def step_us(self, rung: str) -> float:
        """A rung's microseconds per decode step: the median of the runs' means."""
        return self.median("step_us", rung=rung)

    def step_times_ms(self, rung: str) -> list[float]:
        """Milliseconds of each decode step, the median over the runs and, in a run, over the requests.

        Raises RecordError unless all requests were decoded together from their first token to the last.
        """
        times = []
        for run in self.runs_of(rung):
            if any(new_tokens != run.decode_steps + 1 for new_tokens in run.new_tokens):
                raise RecordError(f"not every request was decoded in all {run.decode_steps} steps of the run")
            gaps = np.reshape(run.gaps_us, (len(run.new_tokens), run.decode_steps))
            times.append(np.median(gaps, axis=0) / 1e3)
        return np.median(times, axis=0).tolist()

    def prefill_share(self, rung: str) -> float:
        """The part of a rung's runs that prompts take, 0 to 1: the median."""
        return self.median("prefill_share", rung=rung)

    @property
    def throughputs(self) -> dict[str, list[float]]:
        """Tokens per second of each whole run, prompts included, by rung."""
        return {rung: [run.throughput for run in self.runs_of(rung)] for rung in self.distinct("rung")}

    def throughput(self, rung: str) -> float:
        """A rung's tokens per second of whole runs, prompts included: the median run."""
        return self.median("throughput", rung=rung)

    def comparison(self, before: str, after: str, path: str | None = None) -> Comparison:
        """Compare two rungs' decode times. path: what `after` is about; a warning says if it never ran."""
        return compared_runs(self.runs_of(before), self.runs_of(after), (before, after), path)

    def whole_run_comparison(self, before: str, after: str) -> Comparison:
        """Compare two rungs' times from the first arrival to the last token, prompts included."""
        return self.compared("seconds", "rung", (before, after))

    def table(self, whole_runs: bool = False) -> pd.DataFrame:
        """A row per rung: its rate, and what it gains over the rung above it in the table.

        whole_runs: prompts included, which have no limit here.
        """
        compare = self.whole_run_comparison if whole_runs else self.comparison
        rungs, rows = self.distinct("rung"), {}
        for below, rung in zip([None, *rungs], rungs, strict=False):
            step = None if below is None else compare(below, rung)
            decoding = {
                "decode tokens/s": f"{self.rate(rung):,.0f}",
                "% of limit": f"{100 * self.share_of_limit(rung):.1f}",
            }
            rows[rung] = {
                **({"tokens/s": f"{self.throughput(rung):,.0f}"} if whole_runs else decoding),
                "over the rung below": f"×{step.speedup:.2f}" if step else "",
                "interval": str(step.interval) if step else "",
                "verdict": step.verdict if step else "",
            }
        return table_of(rows, "rung")


def compared_runs(
    before: Sequence[Run],
    after: Sequence[Run],
    names: tuple[str, str],
    path: str | None = None,
    measure: Callable[[Run], float] = lambda run: run.decode_seconds,
) -> Comparison:
    """Compare two sides' runs, made in turn.

    path: what `after` is about; the comparison warns if it never ran. measure: the time to compare, in
    seconds; decoding by default.
    """
    before_samples, after_samples = (tuple(measure(run) for run in runs) for runs in (before, after))
    return Comparison(*names, before_samples, after_samples, total_paths(before), total_paths(after), path)


def total_paths(runs: Sequence[Run]) -> dict[str, int]:
    """How often each append path ran in all runs together."""
    return dict(sum((Counter(run.append_paths) for run in runs), Counter()))


def grouped(gaps: Sequence[int], new_tokens: Sequence[int]) -> list[list]:
    """Group requests' gaps, one after another: [neighbours with equal gaps, their gaps] per group.

    Requests that are decoded together have the same gaps, token for token. Where a gap is not one between
    two tokens, because chunks are longer, all are one group.
    """
    counts = [max(0, count - 1) for count in new_tokens]
    if sum(counts) != len(gaps):
        return [[1, list(gaps)]]
    rest = iter(gaps)
    by_request = [list(islice(rest, count)) for count in counts]
    return [[len(list(same)), own] for own, same in groupby(by_request)]
