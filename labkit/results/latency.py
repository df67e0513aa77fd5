"""Latency metrics: what a user of the engine feels.

TTFT  time to first token: from arrival, so waiting in the queue counts.
TPOT  time per output token: from the first token to the last, over the tokens between.
ITL   inter-token latency: each gap between two tokens; the gaps of all requests are pooled.
Latency, without more: from arrival to the last token.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.results.typed import Count, Positive, Time

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class LatencyMetrics:
    """What users of an engine feel, in seconds: a number per request, and the gaps between its tokens."""

    ttft: tuple[Time, ...]
    queue_wait: tuple[Time, ...]  # the part of TTFT before the prefill began
    tpot: tuple[Time, ...]  # of the requests with two tokens or more
    itl: tuple[Time, ...]
    latency: tuple[Time, ...]
    tokens: Count
    span: Positive  # from the first arrival to the last token

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
