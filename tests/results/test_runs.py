"""Runs of a workload, and what a record of them says of its rungs; and host times."""

import pytest
from made_records import host_time_of, host_time_record, run_of, runs_record

from labkit.results import HostTime, Run
from labkit.results.runs import grouped, total_paths


def ladder(**seconds: float):
    """Four runs of each rung that decode 100 tokens in so many seconds, after half a second of prompts."""
    runs = {rung[1:]: run_of(s, s + 0.5, prefill_seconds=0.5) for rung, s in seconds.items()}
    return runs_record([*runs.items()] * 4, limit_seconds=0.25)


def test_the_steps_of_a_ladder():
    table = ladder(r00=4.0, r01=1.0).table()
    assert list(table.loc["00"]) == ["25", "6.2", "", "", ""]
    assert list(table.loc["01"]) == ["100", "25.0", "×4.00", "[4.000, 4.000]", "faster"]


def stepped(*gaps_us: list[int]) -> Run:
    """A run of two decode steps, with the gaps of each request."""
    new_tokens = tuple(len(own) + 1 for own in gaps_us)
    return run_of(decode_steps=2, new_tokens=new_tokens, gaps_us=[gap for own in gaps_us for gap in own])


def test_step_times_are_medians_over_runs():
    record = runs_record([("01", stepped([first, 2000])) for first in (1000, 3000, 9000)])
    assert record.step_times_ms("01") == [3.0, 2.0]


def test_step_times_need_every_request_in_every_step():
    with pytest.raises(ValueError, match="not every request was decoded in all 2 steps"):
        runs_record([("01", stepped([1000, 2000], [1000]))]).step_times_ms("01")


def test_paths_of_all_runs_are_added_up_though_a_run_may_lack_one():
    runs = [run_of(append_paths=paths) for paths in ({"a": 1}, {"b": 2}, {"a": 3, "b": 4})]
    assert total_paths(runs) == {"a": 4, "b": 6} and total_paths([]) == {}


def test_gaps_are_grouped_by_requests_that_have_the_same():
    assert grouped([5, 6, 5, 6, 7, 8], [3, 3, 3]) == [[2, [5, 6]], [1, [7, 8]]]
    assert grouped([5, 5, 5], [2, 2, 2]) == [[3, [5]]]
    assert grouped([5, 6], [3, 1, 1]) == [[1, [5, 6]], [2, []]]
    assert grouped([5, 6], [9, 9]) == [[1, [5, 6]]]  # chunks, not tokens


# --- host times: what compared cells of the notebooks do not show of them -----------------------------------


def test_a_layer_has_its_share_of_tables_and_append():
    time = HostTime(4, 2, (1e-3, 5e-3, 3e-3), (1e-4, 4e-3, 1e-4), (2e-4, 2e-4, 2e-3))
    assert time.layer_us == pytest.approx(1050)


def test_a_table_has_a_column_for_each_batch_size():
    record = host_time_record([("00", host_time_of(8)), ("00", host_time_of(64))])
    assert record.table().to_dict("index") == {"00": {"B = 8": 1_000_000, "B = 64": 1_000_000}}
