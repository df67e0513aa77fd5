"""Recorded runs through several engines in turn: of one workload, of several loads, and of batches that draw
in several ways."""

from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from labkit.results.comparison import Comparison
from labkit.results.record import Record, table_of

OURS = "labkit"  # engines whose names begin so


@dataclass(frozen=True)
class EngineRun:
    """A run through one engine, timed from outside by the wall clock, in seconds."""

    engine: str
    seconds: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole run, prompts included."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class PeerSample(EngineRun):
    """A run of the workload; what is not known is None."""

    first_token_seconds: float | None  # to the first batch's first tokens
    decode_tokens_per_second: float | None  # after the first tokens, where one batch holds all requests
    equal_requests: int  # requests that got the tokens of the record's first run
    limit_seconds: float


class PeersRecord(Record):
    """What `python -m labkit.bench peers` recorded: runs by engine."""

    @property
    def engines(self) -> list[str]:
        """The engines that ran, by name, in the order of the record."""
        return self.distinct("engine")

    def rate(self, engine: str) -> float:
        """An engine's tokens per second of whole runs, the median."""
        return self.median("tokens_per_second", engine=engine)

    def comparison(self, engine: str, reference: str) -> Comparison:
        """Compare whole runs of two engines, made in turn: a speedup above 1 means `reference` is faster."""
        return self.compared("seconds", "engine", (engine, reference))

    @property
    def ours(self) -> str:
        """The name of labkit's last rung in the record, such as "labkit 10"."""
        return max(engine for engine in self.engines if engine.startswith(OURS))

    @property
    def theirs(self) -> str:
        """The name of the fastest engine that is not labkit."""
        return max((each for each in self.engines if not each.startswith(OURS)), key=self.rate)

    def same_tokens(self, engine: str) -> int:
        """How many requests had the tokens of the record's first run, in the worst of the engine's runs."""
        return min(run.equal_requests for run in self.only(engine=engine))

    def table(self) -> pd.DataFrame:
        """A row per engine: whole runs, decoding alone, and the wait for the first token."""
        rows = {}
        for engine in self.engines:
            runs = self.only(engine=engine)
            decode = [rate for run in runs if (rate := run.decode_tokens_per_second) is not None]
            first = [1e3 * s for run in runs if (s := run.first_token_seconds) is not None]
            rows[engine] = {
                "tokens/s": f"{self.rate(engine):,.0f}",
                "decode tokens/s": f"{median(decode):,.0f}" if decode else "",
                "first token (ms)": f"{median(first):.1f}" if first else "",
                "% of limit": f"{100 * median(run.limit_seconds / run.seconds for run in runs):.1f}",
            }
        return table_of(rows, "engine")


# --- several loads ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadRun(EngineRun):
    """A run of a load.

    equal_requests: that got the tokens of the load's first run; None where they are drawn. ttft, itl_us: of
    all requests, the latter in microseconds; empty unless requests come one after another.
    """

    load: str
    equal_requests: int | None
    ttft: tuple[float, ...] = ()
    itl_us: tuple[int, ...] = ()


class LoadsRecord(Record):
    """What `python -m labkit.bench loads` recorded: runs by load and engine.

    Among its settings are limits, what each load asks at least: tokens; num_bytes, that decoding moves;
    prompt_flops, of the prompts, what several begin with counted once; last_arrival, in seconds. left_out are
    engines that did not run a load, with the reason.
    """

    @property
    def loads(self) -> list[str]:
        """The loads, by name, in the order of the record."""
        return self.distinct("load")

    def left_out(self, load: str) -> dict[str, str]:
        """Engines that did not run a load, by name, with the reason."""
        return self.settings["left_out"].get(load, {})

    def rate(self, load: str, engine: str) -> float | None:
        """Tokens per second of whole runs by the wall clock, the median; None if the engine was left out."""
        if engine in self.left_out(load):
            return None
        return self.median("tokens_per_second", load=load, engine=engine)

    def limit_rate(self, load: str) -> float:
        """The most tokens per second: bytes at the copy bandwidth, prompts at a large product's rate, and no
        run ends before its last request has come."""
        limit = self.limits[load]
        work = limit["num_bytes"] / self.bandwidth + limit["prompt_flops"] / self.matmul_rate
        return limit["tokens"] / max(work, limit["last_arrival"])

    def table(self) -> pd.DataFrame:
        """Tokens per second by the wall clock: a row per engine and one for the limit, a column per load."""
        left_out = [engine for load in self.loads for engine in self.left_out(load)]
        engines = dict.fromkeys([*self.distinct("engine"), *left_out])
        rates = {engine: {load: self.rate(load, engine) for load in self.loads} for engine in engines}
        rates["limit: bytes and arithmetic"] = {load: self.limit_rate(load) for load in self.loads}
        return table_of(rates, "engine").map(lambda rate: "–" if pd.isna(rate) else f"{rate:,.0f}")

    def latency_table(self) -> pd.DataFrame:
        """Milliseconds p50 and p99 of TTFT and ITL, a row per engine, of requests that come one after
        another."""
        rows = {}
        for engine in dict.fromkeys(run.engine for run in self.samples if run.ttft):
            runs = self.only(engine=engine)
            felt = {
                "TTFT": [1e3 * seconds for run in runs for seconds in run.ttft],
                "ITL": [us / 1e3 for run in runs for us in run.itl_us],
            }
            rows[engine] = {
                f"{name} p{p} (ms)": f"{np.percentile(values, p):,.1f}"
                for name, values in felt.items()
                for p in (50, 99)
            }
        return table_of(rows, "engine")


# --- batches that draw, of a command that labkit no longer has ----------------------------------------------


@dataclass(frozen=True)
class SamplingRun:
    """A run of a workload on a rung. manner: how its requests pick their tokens. Seconds are those of
    decoding alone, over its `decode_steps`.

    equal_requests: that got the tokens of the workload's first run.
    """

    manner: str
    rung: str
    decode_seconds: float
    decode_steps: float
    tokens: int
    equal_requests: int

    @property
    def step_us(self) -> float:
        """Microseconds per decode step."""
        return 1e6 * self.decode_seconds / self.decode_steps


class SamplingRecord(Record):
    """Recorded runs of two rungs in turn, for each manner of sampling."""

    @property
    def manners(self) -> list[str]:
        """How requests pick their tokens, by name, in the order of the record."""
        return self.distinct("manner")

    def step_us(self, manner: str, rung: str) -> float:
        """Microseconds per decode step, the median of the runs."""
        return self.median("step_us", manner=manner, rung=rung)

    def comparison(self, manner: str, before: str, after: str) -> Comparison:
        """Compare the decode times of two rungs, whose runs were made in turn."""
        return self.compared("decode_seconds", "rung", (before, after), manner=manner)

    def table(self) -> pd.DataFrame:
        """A row per manner: microseconds per decode step on either rung, their ratio with its verdict, and
        how many requests got the tokens of the first run in all runs of both."""
        rows, rungs = {}, sorted(self.distinct("rung"))
        for manner in self.manners:
            compared = self.comparison(manner, *rungs)
            equal = min(run.equal_requests for run in self.only(manner=manner))
            rows[manner] = {
                **{f"rung {r} (µs)": f"{self.step_us(manner, r):,.0f}" for r in rungs},
                "times as fast": f"×{compared.speedup:.2f} {compared.interval}",
                "verdict": compared.verdict,
                "same tokens": f"{equal} of {self.num_requests}",
            }
        return table_of(rows, "a decode step")
