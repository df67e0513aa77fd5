"""Every machine's records, a line each."""

from dataclasses import replace

import pytest
from made_records import HOST, host_time_of, host_time_record, run_of, runs_record

from labkit.bench.record import write_record
from labkit.errors import RecordError
from labkit.results import files, host_time_lines, ladder_lines

LAPTOP = replace(HOST, device="Apple M3", cpu="Apple M3")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    return tmp_path


def ladder(*runs):
    return runs_record(runs, num_requests=4, max_new_tokens=9, max_batch_size=2)


def test_a_ladder_of_each_machine_is_a_line_of_its_median_rates_and_the_newest_is_the_last(folder):
    mine = ladder(*((rung, run_of(seconds)) for rung, seconds in (("02", 0.5), ("00", 2.0), ("00", 1.0))))
    older = replace(ladder(("05", run_of(0.1))), date="2025-01-01")
    write_record(replace(mine, host=LAPTOP), folder / "a_laptop.json")
    write_record(older, folder / "h100.json")
    assert ladder_lines() == {
        "a GPU: none, 4 × 9, B = 2 (h100)": {"05": 1000.0},
        "Apple M3: none, 4 × 9, B = 2 (a_laptop)": {"00": 75.0, "02": 200.0},
    }
    assert list(ladder_lines().popitem()[1]) == ["00", "02"]  # in the ladder's order


def test_host_time_is_told_at_the_batch_size_that_is_nearest(folder):
    times = [("00", host_time_of(b, step=(1e-6 * b, 3e-6 * b, 2e-6 * b))) for b in (8, 32, 256)]
    write_record(
        replace(host_time_record([*times, ("10", host_time_of(32))]), host=LAPTOP), folder / "x.json"
    )
    assert host_time_lines() == {"Apple M3: B = 32 (x)": {"00": pytest.approx(64), "10": 1e6}}
    assert host_time_lines(200) == {"Apple M3: B = 256 (x)": {"00": pytest.approx(512)}}


def test_where_there_is_none_there_is_no_line_and_a_broken_file_is_named(folder):
    assert ladder_lines() == host_time_lines() == {}
    (folder / "mine.json").write_text('{"kind": "ladder", ')
    with pytest.raises(RecordError, match=r"mine\.json is not valid JSON"):
        ladder_lines()
