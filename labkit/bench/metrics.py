"""Latency metrics of requests, from the times that their completions carry."""

from collections.abc import Sequence
from itertools import pairwise

from labkit.engine import Completion, Timing
from labkit.results.latency import LatencyMetrics


def latency_metrics(completions: Sequence[Completion]) -> LatencyMetrics:
    """Latency metrics of requests served together. Raises ValueError if one of them made no token."""
    timings = [completion.timing for completion in completions]
    for completion, timing in zip(completions, timings, strict=True):
        if not timing.tokens:
            raise ValueError(f"request {completion.request_id} made no token ({completion.finish_reason})")
    return metrics_of(timings, [len(timing.tokens) for timing in timings])


def metrics_of(timings: Sequence[Timing], num_tokens: Sequence[int]) -> LatencyMetrics:
    """Latency metrics from the moments at which requests got tokens, one at a time or several.

    num_tokens: how many each got in all its moments; each has one at least.
    """
    with_numbers = list(zip(timings, num_tokens, strict=True))
    return LatencyMetrics(
        ttft=tuple(t.tokens[0] - t.arrived for t in timings),
        queue_wait=tuple(t.admitted - t.arrived for t in timings),
        tpot=tuple((t.tokens[-1] - t.tokens[0]) / (n - 1) for t, n in with_numbers if n > 1),
        itl=tuple(later - earlier for t in timings for earlier, later in pairwise(t.tokens)),
        latency=tuple(t.tokens[-1] - t.arrived for t in timings),
        tokens=sum(num_tokens),
        span=max(t.tokens[-1] for t in timings) - min(t.arrived for t in timings),
    )
