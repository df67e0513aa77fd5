"""Records as files: what each says of itself, that nothing of it is lost, and what is refused."""

import json
from dataclasses import replace

import pytest
from helpers import MEASURED
from made_records import HOST, host_time_of, host_time_record, record_of, run_of, runs_record

from labkit.bench.record import write_record
from labkit.errors import RecordError
from labkit.paths import RESULTS
from labkit.results import (
    GpuTests,
    HostTimeRecord,
    files,
    host_time_lines,
    ladder_lines,
    load,
    load_all,
    load_gpu_tests,
)
from labkit.results.files import record_of as record_from
from labkit.results.peers import SamplingRun


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_record_says_where_it_comes_from_and_is_written_as_it_was_read(path):
    """Older records hold figures that follow from the others, too."""
    record = load(path.stem)
    recorded = json.loads(path.read_text(encoding="utf-8"))
    for sample in recorded["samples"]:
        for name in ("tokens_per_second", "us", "idle_share", "copy_bytes_per_second"):
            if record.kind in ("peers", "attention", "decode_kernels"):
                sample.pop(name, None)
    assert json.loads(json.dumps(record.to_dict())) == recorded
    assert (
        record.command.startswith(("python -m labkit.bench ", "python tests/soak "))
        and len(record.commit) == 40
    )
    assert (
        " /" not in record.command and "/" not in record.host.device
    )  # where it was made is nobody's business


def test_a_record_is_found_by_its_kind_however_it_was_written(folder):
    made = host_time_record([("00", host_time_of())])
    write_record(made, folder / "as_made.json")
    raw = made.to_dict()
    (folder / "kind_last.json").write_text(json.dumps({k: raw[k] for k in reversed(raw)}, indent=2))
    (folder / "trace.json").write_text('{"traceEvents": []}')
    (folder / "of_another_kind.json").write_text('{"kind": "profile", and no JSON after that')
    assert load_all("host_time") == {"as_made": made, "kind_last": made}
    assert isinstance(load("as_made"), HostTimeRecord)


def ladder():
    runs = [("00", run_of(new_tokens=(3,), gaps_us=(5, 6))), ("01", run_of())] * 2
    return runs_record(runs, num_requests=1, max_new_tokens=3, max_batch_size=1)


def test_gaps_between_tokens_are_those_of_the_requests():
    first, *_ = ladder().to_dict()["samples"]
    assert first["itl_us"] == [[1, [5, 6]]]
    raw = {**ladder().to_dict(), "samples": [{**first, "itl_us": [[10**30, [5, 6]]]}]}
    with pytest.raises(RecordError, match=r"mine.samples\[0\].itl_us has the gaps of more requests"):
        record_from(raw, "mine")  # before a list of that length is made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "guess"}, "mine is of no known kind: 'guess'"),
        ({"host": {"device": "x"}}, "mine.host lacks driver, cpu"),
        ({"samples": []}, "mine has no samples"),
        ({"samples": [{}]}, r"mine.samples\[0\].itl_us must be a list, not None"),
    ],
)
def test_a_record_with_a_hole_is_refused(changes, message):
    with pytest.raises(RecordError, match=message):
        record_from(ladder().to_dict() | changes, "mine")


def test_what_was_read_can_be_told_or_is_an_error_of_labkits():
    """A record that lacks a run has a whole of everything but of its rounds."""
    sampled = [SamplingRun("greedy", rung, 1.0, 9, 9, 1) for rung in ("11", "12", "12", "11")]
    sizes = {"num_requests": 1, "max_new_tokens": 9, "max_batch_size": 1}
    for record in (ladder(), record_of("sampling", sampled, **sizes)):
        assert len(record.table())
        raw = record.to_dict()
        lacking = record_from({**raw, "samples": raw["samples"][:-1]}, "mine")
        with pytest.raises(RecordError, match="do not make rounds of A B B A"):
            lacking.table()


def test_settings_and_machines_are_read_as_they_were_told():
    record = ladder()
    assert (record.model, record.num_requests, record.host.machine) == ("none", 1, "a GPU")
    with pytest.raises(RecordError, match="a RunsRecord has no seed"):
        _ = record.seed
    older = {**record.to_dict(), "host": {**HOST.to_dict(), "device": "x86_64"}}
    assert record_from(older, "mine").host.machine == "a CPU" and "read_bandwidth" not in older


def test_the_outcome_of_the_gpu_tests_is_written_as_it_was_read(tmp_path):
    raw = json.loads((RESULTS / "gpu_tests.json").read_text(encoding="utf-8"))
    assert isinstance(load_gpu_tests(), GpuTests) and load_gpu_tests().to_dict() == raw
    (tmp_path / "mine.json").write_text(json.dumps({**raw, "passed": "all"}))
    with pytest.raises(RecordError, match=r"mine\.json\.passed must be a whole number"):
        load_gpu_tests(tmp_path / "mine.json")


# --- every machine's records, a line each ----------------------------------------------------------------

LAPTOP = replace(HOST, device="Apple M3", cpu="Apple M3")


def ladder_of(*runs):
    return runs_record(runs, num_requests=4, max_new_tokens=9, max_batch_size=2)


def test_a_ladder_of_each_machine_is_a_line_of_its_median_rates_and_the_newest_is_the_last(folder):
    mine = ladder_of(*((rung, run_of(seconds)) for rung, seconds in (("02", 0.5), ("00", 2.0), ("00", 1.0))))
    older = replace(ladder_of(("05", run_of(0.1))), date="2025-01-01")
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
