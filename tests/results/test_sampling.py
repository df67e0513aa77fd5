"""Recorded runs of batches that draw in several ways, on two rungs."""

import pytest
from made_records import record_of

from labkit.errors import RecordError
from labkit.results.sampling import SamplingRun

SECONDS = {"greedy": {"11": 1.0, "12": 1.0}, "top-p": {"11": 4.0, "12": 2.0}}
RECORD = record_of(
    "sampling",
    [
        SamplingRun(manner, rung, seconds, 10, 64, 3 + (rung == "11"))
        for manner, of_rungs in SECONDS.items()
        for rung, seconds in of_rungs.items()
        for _ in range(4)
    ],
    num_requests=4,
    max_new_tokens=16,
    max_batch_size=4,
)


def test_runs_are_found_by_manner_and_rung():
    assert RECORD.manners == ["greedy", "top-p"] and RECORD.rungs == ("11", "12")
    assert len(RECORD.only(manner="top-p", rung="12")) == 4
    assert RECORD.step_us("top-p", "11") == pytest.approx(4e5)
    with pytest.raises(RecordError, match="no runs of manner 'top-k' and rung '12'"):
        RECORD.step_us("top-k", "12")


def test_the_rungs_are_compared_manner_by_manner():
    compared = RECORD.comparison("top-p", "11", "12")
    assert compared.speedup == 2 and compared.verdict == "faster"
    table = RECORD.table()
    assert table.loc["top-p"].tolist() == ["400,000", "200,000", "×2.00 [2.000, 2.000]", "faster", "3 of 4"]
