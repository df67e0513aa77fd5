"""Loads through several engines: what a record does not have. What it has, BENCHMARKS.md shows."""

import pytest

from labkit.errors import RecordError
from labkit.results import load

RECORD = load("loads_cpu")


def test_what_was_not_recorded_is_none_or_an_error_that_says_what_there_is():
    assert RECORD.floor_rate("sampled") is None  # a CPU runs no chain of kernels
    assert RECORD.rate("arrivals", "transformers, dynamic cache") is None  # which has no way to serve them
    with pytest.raises(RecordError, match="no runs of load 'busy' and engine 'labkit 10'"):
        RECORD.rate("busy", "labkit 10")
    with pytest.raises(RecordError, match="no load 'busy'; it has sampled, ragged"):
        RECORD.limit_of("busy")
    with pytest.raises(RecordError, match="come all at once"):
        RECORD.percentiles_ms("sampled", "labkit 10")
