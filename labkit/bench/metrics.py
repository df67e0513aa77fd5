"""Latency metrics of requests, from the times that their completions carry."""

from collections.abc import Sequence
from itertools import pairwise

from labkit.engine import Completion
from labkit.results.latency import LatencyMetrics


def latency_metrics(completions: Sequence[Completion]) -> LatencyMetrics:
    """Latency metrics of requests served together. Raises ValueError if one of them made no token."""
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
