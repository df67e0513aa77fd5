"""Recorded runs of several loads through labkit and other engines, and what each load asks at least."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.results.record import Record, table_of


@dataclass(frozen=True)
class LoadRun:
    """A run of a load through an engine, timed from outside by the wall clock, in seconds.

    equal_requests: that got the tokens of the load's first run; None where they are drawn. ttft, itl_us: of
    all requests, the latter in microseconds; empty unless requests come one after another.
    """

    load: str
    engine: str
    seconds: float
    tokens: int
    equal_requests: int | None
    ttft: tuple[float, ...] = ()
    itl_us: tuple[int, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole run, prompts included."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
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

    @property
    def engines(self) -> list[str]:
        """The engines that ran a load or were meant to, by name; labkit's rungs first."""
        left_out = (name for load in self.loads for name in self.left_out(load))
        return list(dict.fromkeys([*self.distinct("engine"), *left_out]))

    def left_out(self, load: str) -> Mapping[str, str]:
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

        def row(value: Callable[..., float | None], *of: str) -> dict[str, str]:
            values = {load: value(load, *of) for load in self.loads}
            return {load: "–" if rate is None else f"{rate:,.0f}" for load, rate in values.items()}

        rows = {engine: row(self.rate, engine) for engine in self.engines}
        return table_of({**rows, "limit: bytes and arithmetic": row(self.limit_rate)}, "engine")

    def latency_table(self) -> pd.DataFrame:
        """Milliseconds p50 and p99 of TTFT and ITL, a row per engine, of requests that come one after
        another."""
        rows = {}
        for engine in dict.fromkeys(run.engine for run in self.samples if run.ttft):
            runs = [run for run in self.only(engine=engine) if run.ttft]
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
