"""A record of simulated fleets."""

import pytest
from made_records import record_of

from labkit.results.fleet import FleetRun

STEADY = FleetRun(8, "prefix", 2, "1 lost", 4000.0, 100, 0, 0.0, 8e5, 0.975, (0.001, 0.25), 9.6, 25e-6)
GROWING = FleetRun(4, "prefix", 1, "from 1, cold start 5 s", 10.0, 200, 50, 41.2, 1e3, 0.9, (0.1, 2), 9, 1e-6)


def test_what_choosing_costs_each_ingress_and_the_two_tables():
    assert STEADY.busy == pytest.approx(0.05)
    record = record_of("fleet", [STEADY, GROWING], share=0.7, seed=0)
    row = record.steady_table().loc["8, 1 lost"]
    assert (row["beginnings found"], row["TTFT p99"], row["cores of each ingress"]) == (
        "98%",
        "250.00",
        "0.05",
    )
    row = record.growth_table().loc["from 1, cold start 5 s"]
    assert list(row) == ["10", "25%", "41 s", "2,000 ms"]
