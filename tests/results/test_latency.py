"""Latencies as a table; how they come from completions is tested beside `bench`."""

import pytest

from labkit.results import LatencyMetrics


def test_percentiles_are_in_milliseconds_and_what_nobody_felt_has_no_row():
    """Of 21 requests, request i waits i ms for its only token."""
    waits = tuple(i / 1e3 for i in range(21))
    metrics = LatencyMetrics(waits, waits, (), (), waits, tokens=21, span=0.5)
    table = metrics.table()
    assert list(table.index) == ["TTFT", "  of it queue wait", "Latency"]
    assert table.loc["TTFT"].tolist() == pytest.approx([10, 18, 19, 19.8])
    assert metrics.throughput == 42
