"""What a user of the engine feels, from the moments that completions carry.

TTFT  time to first token: from arrival, so waiting in the queue counts.
TPOT  time per output token: from the first token to the last, over the tokens between.
ITL   inter-token latency: each gap between two tokens; the gaps of all requests are pooled.
Latency, without more: from arrival to the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from labkit.engine import Completion

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class LatencyMetrics:
    """Seconds, one number a request (gaps: one a pair of neighbouring tokens)."""

    ttft: tuple[float, ...]
    queue_wait: tuple[float, ...]  # the part of TTFT before the prefill began
    tpot: tuple[float, ...]  # of the requests with two tokens or more
    itl: tuple[float, ...]
    latency: tuple[float, ...]
    tokens: int
    span: float  # from the first arrival to the last token

    @property
    def throughput(self) -> float:
        """Tokens a second, all requests together."""
        return self.tokens / self.span

    def table(self) -> pd.DataFrame:
        """Percentiles in milliseconds."""
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


def latency_metrics(completions: Sequence[Completion]) -> LatencyMetrics:
    """Metrics of requests served together. Raises ValueError if one of them made no token."""
    timings = [completion.timing for completion in completions]
    for completion, timing in zip(completions, timings, strict=True):
        if not timing.tokens:
            raise ValueError(f"request {completion.request_id} made no token ({completion.finish_reason})")
    tokens = sum(len(t.tokens) for t in timings)
    span = max(t.tokens[-1] for t in timings) - min(t.arrived for t in timings)
    return LatencyMetrics(
        ttft=tuple(t.tokens[0] - t.arrived for t in timings),
        queue_wait=tuple(t.admitted - t.arrived for t in timings),
        tpot=tuple((t.tokens[-1] - t.tokens[0]) / (len(t.tokens) - 1) for t in timings if len(t.tokens) > 1),
        itl=tuple(later - earlier for t in timings for earlier, later in pairwise(t.tokens)),
        latency=tuple(t.tokens[-1] - t.arrived for t in timings),
        tokens=tokens,
        span=span,
    )
