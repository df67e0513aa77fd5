"""Loads through several engines, as recorded: rates by the wall clock, latencies, and two limits."""

import pytest
from made_records import record_of

from labkit.errors import RecordError
from labkit.results.peers import LoadLimit, LoadRun

ALL, LATE = LoadLimit(100, 10**9, 50, 2e9, 0.0), LoadLimit(100, 10**9, 50, 2e9, 4.0)


def loads_record(chain_seconds=None, kernels=None):
    runs = [
        LoadRun("sampled", engine, seconds, 100, None)
        for engine, seconds in (("labkit 10", 5.0), ("other", 10.0), ("other", 20.0), ("labkit 10", 5.0))
    ]
    late = LoadRun("arrivals", "labkit 10", 8.0, 100, 3, (0.1, 0.2, 0.3), (1000, 2000, 3000))
    return record_of(
        "loads",
        [*runs, late],
        rate=50.0,
        num_requests=3,
        max_new_tokens=64,
        max_batch_size=3,
        limits={"sampled": ALL.to_dict(), "arrivals": LATE.to_dict()},
        left_out={"sampled": {}, "arrivals": {"other": "it has no way"}},
        versions={"other": "1"},
        matmul_rate=1e9,
        kernels=kernels,
        chain_seconds=chain_seconds,
    )


RECORD = loads_record()


def test_rates_are_by_the_wall_clock_and_none_where_an_engine_was_left_out():
    assert RECORD.loads == ["sampled", "arrivals"] and RECORD.engines == ["labkit 10", "other"]
    assert RECORD.rate("sampled", "labkit 10") == 20
    assert RECORD.rate("sampled", "other") == 7.5  # the median of 10 and 5
    assert RECORD.rate("arrivals", "other") is None
    assert RECORD.left_out("arrivals") == {"other": "it has no way"} and RECORD.versions == {"other": "1"}
    with pytest.raises(RecordError, match="no runs of load 'ragged' and engine 'other'"):
        RECORD.rate("ragged", "other")


def test_the_limit_is_of_bytes_and_arithmetic_and_no_run_ends_before_its_last_request():
    assert RECORD.limit_of("sampled") == ALL
    assert RECORD.limit_rate("sampled") == 100 / (1 + 2)  # bytes at 1e9 a second, and the prompts
    assert RECORD.limit_rate("arrivals") == 100 / 4
    with pytest.raises(RecordError, match="no load 'ragged'; it has sampled, arrivals"):
        RECORD.limit_of("ragged")


def test_a_chain_of_kernels_is_a_second_limit_where_it_was_measured():
    assert RECORD.floor_rate("sampled") is None
    measured = loads_record(chain_seconds=0.04, kernels=65)
    assert (measured.floor_rate("sampled"), measured.floor_rate("arrivals")) == (50, 25)


def test_latencies_are_percentiles_of_all_runs():
    felt = RECORD.percentiles_ms("arrivals", "labkit 10")
    assert felt["TTFT"] == pytest.approx((200, 298)) and felt["ITL"] == pytest.approx((2.0, 2.98))
    with pytest.raises(RecordError, match="come all at once"):
        RECORD.percentiles_ms("sampled", "other")


def test_a_table_has_a_dash_where_there_is_no_number():
    assert RECORD.table().loc["other"].tolist() == ["8", "–"]
    assert RECORD.latency_table().loc["labkit 10"].tolist() == ["200.0", "298.0", "2.0", "3.0"]
