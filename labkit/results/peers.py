"""Recorded runs of one workload through labkit and through other engines."""

from dataclasses import dataclass
from statistics import median

import pandas as pd

from labkit.results.comparison import Comparison
from labkit.results.record import Record, table_of

OURS = "labkit"  # engines whose names begin so


@dataclass(frozen=True)
class PeerSample:
    """A run of the workload through one engine, timed from outside, in seconds; what is not known is None."""

    engine: str
    seconds: float
    first_token_seconds: float | None  # to the first batch's first tokens
    tokens: int
    decode_tokens_per_second: float | None  # after the first tokens, where one batch holds all requests
    equal_requests: int  # requests that got the tokens of the record's first run
    limit_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole run, prefill included."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
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
