"""Recorded results: what each must hold, and how they are read."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import MEASURED

from labkit.bench import (
    host_comparison,
    host_times,
    ladder_comparison,
    ladder_limit,
    ladder_rates,
    record,
    results,
)
from labkit.errors import RecordError

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("path", MEASURED, ids=lambda p: p.stem)
def test_records_say_where_they_come_from_and_keep_raw_samples(path):
    recorded = record.load_record(path.stem)  # which checks that every sample has what its kind needs
    assert recorded["command"].startswith("python -m labkit.bench ")
    assert len(recorded["commit"]) == 40
    assert recorded["bandwidth"] > 1e9
    assert "/" not in recorded["host"]["device"]
    for sample in recorded["samples"]:
        CHECKS[recorded["kind"]](recorded, sample)


def check_profile(recorded, sample):
    assert len(sample["step_seconds"]) == recorded["settings"]["steps"]
    assert sum(sample["append_paths"].values()) > 0
    assert 0 < sample["limit_seconds"] < min(sample["step_seconds"])


def check_run(recorded, sample):
    """Raw samples of every request, and figures that fit each other."""
    requests, settings = recorded["settings"]["num_requests"], recorded["settings"]
    assert len(sample["ttft"]) == len(sample["latency"]) == len(sample["new_tokens"]) == requests
    assert sum(sample["new_tokens"]) == sample["tokens"] == requests * settings["max_new_tokens"]
    assert sample["decoded_tokens"] == sample["tokens"] - requests
    made_ready = ("first", "boundary", "copy_on_write", "in_place")
    appended = sum(count for path, count in sample["append_paths"].items() if path in made_ready)
    assert appended > 0 and appended % sample["decoded_tokens"] == 0  # once a layer
    assert 0 < sample["limit_seconds"] < sample["decode_seconds"] <= sample["seconds"]
    assert max(sample["latency"]) <= sample["seconds"] * 1.001


def check_host_time(recorded, sample):
    steps = recorded["settings"]["steps"]
    assert len(sample["step_seconds"]) == len(sample["append_seconds"]) == steps


def check_card(recorded, sample):
    assert len(sample["key"]["prompt_lens"]) == sample["batch_size"] == sample["card"]["batch_size"]
    assert sample["card"]["host"]["kv_bytes_written"] > 0


def check_comparison(recorded, sample):
    sides = sample["comparison"]["before_samples"], sample["comparison"]["after_samples"]
    assert len(sides[0]) == len(sides[1]) == 2 * recorded["settings"]["rounds"]


def check_append(recorded, sample):
    assert len(sample["device_seconds"]) == len(sample["host_seconds"]) == recorded["settings"]["repeats"]
    assert sample["num_bytes"] % sample["batch_size"] == 0


def check_peers(recorded, sample):
    """Every engine made all the tokens, and none went past the limit."""
    settings = recorded["settings"]
    assert sample["tokens"] == settings["num_requests"] * settings["max_new_tokens"]
    assert sample["tokens_per_second"] == pytest.approx(sample["tokens"] / sample["seconds"])
    assert 0 < sample["limit_seconds"] < sample["seconds"]
    assert 0 <= sample["equal_requests"] <= settings["num_requests"]


def check_attention(recorded, sample):
    """No key or value is read faster than memory can be copied, and the median is that of the samples."""
    assert len(sample["seconds"]) == recorded["settings"]["repeats"]
    assert sample["us"] == pytest.approx(1e6 * np.median(sample["seconds"]))
    assert sample["kernel"] in ("one_program", "split") and sample["splits"] >= 1
    assert sample["num_bytes"] / min(sample["seconds"]) < recorded["bandwidth"]


def check_decode_kernels(recorded, sample):
    """Kernels do not overlap as they are counted, so together they are the GPU's busy time."""
    kernel_us = sum(kernel["us"] for kernel in sample["kernels"])
    assert kernel_us == pytest.approx(sample["gpu_busy_us"])
    assert 0 < sample["gpu_busy_us"] <= sample["step_us"]
    assert sample["idle_share"] == pytest.approx(1 - sample["gpu_busy_us"] / sample["step_us"])


CHECKS = {
    "attention": check_attention,
    "decode_kernels": check_decode_kernels,
    "kv_append": check_append,
    "profile": check_profile,
    "scheduler": check_run,
    "streaming": check_run,
    "ladder": check_run,
    "host_time": check_host_time,
    "cost_card": check_card,
    "comparison": check_comparison,
    "peers": check_peers,
}


def test_every_kind_is_checked():
    assert set(CHECKS) == set(record.SAMPLE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path


def host_time_record(**changes) -> dict:
    sample = {
        "rung": "00",
        "batch_size": 2,
        "num_layers": 12,
        "step_seconds": [1.0, 2.0],
        "tables_seconds": [0.1, 0.1],
        "append_seconds": [0.1, 0.1],
    }
    made = record.make_record("host_time", CPU, 2e9, {"model": "none"}, [sample])
    return {**made, **changes}


def test_a_record_names_its_machine_commit_and_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["somewhere/__main__.py", "host-time", "--steps", "2"])
    made = host_time_record()
    assert made["command"] == "python -m labkit.bench host-time --steps 2"
    assert made["host"]["torch"] == torch.__version__ and made["host"]["driver"] is None
    assert made["date"].endswith("+00:00") and made["bandwidth"] == 2e9


def test_results_are_rows_of_samples_with_their_machine(folder):
    for name, rung in (("mine", "00"), ("yours", "01")):
        made = host_time_record()
        made["samples"][0]["rung"] = rung
        record.write_record(made, folder / f"{name}.json")
    table = results("host_time")
    assert table["record"].tolist() == ["mine", "yours"] and table["rung"].tolist() == ["00", "01"]
    assert table["step_seconds"].tolist() == [[1.0, 2.0]] * 2
    assert table["model"].tolist() == ["none"] * 2 and table["bandwidth"].tolist() == [2e9] * 2
    assert isinstance(results("ladder"), pd.DataFrame) and results("ladder").empty


def test_a_record_that_lacks_something_is_refused(folder):
    (folder / "half.json").write_text('{"kind": "profile", "date": "2026-11-21"}')
    with pytest.raises(ValueError, match="half lacks commit, command, host, bandwidth, settings, samples"):
        record.load_record("half")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": {"device": "x"}}, "lacks driver, cpu, .* in host"),
        ({"kind": "guess"}, "no known kind: 'guess'"),
        ({"samples": []}, "has no samples"),
        ({"samples": [{"rung": "00"}]}, "lacks batch_size, num_layers, .* in sample 0"),
    ],
)
def test_a_record_with_a_hole_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        record.check_record("holed", host_time_record(**changes))


def test_nothing_incomplete_is_written():
    with pytest.raises(ValueError, match="to be written lacks key"):
        record.make_record("cost_card", CPU, 1e9, {"model": "x"}, [{"rung": "00", "batch_size": 1}])


def test_a_record_of_another_kind_is_not_read_beyond_its_kind(folder):
    (folder / "broken.json").write_text('{"kind": "profile", and no JSON after that')
    record.write_record(host_time_record(), folder / "fine.json")
    assert results("host_time")["record"].tolist() == ["fine"]
    with pytest.raises(RecordError, match=r"broken\.json is not valid JSON"):
        record.load_records("profile")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_record_is_found_by_its_kind_however_it_was_written(folder, indent):
    made = host_time_record()
    for name, order in (("as_made", list(made)), ("kind_last", [*list(made)[1:], "kind"])):
        text = json.dumps({key: made[key] for key in order}, indent=indent)
        (folder / f"{name}.json").write_text(text)
    assert record.load_records("host_time") == {"as_made": made, "kind_last": made}
    assert record.load_records("profile") == {}


# --- in the shape of figures -----------------------------------------------------------------------


def test_recorded_runs_are_rates_by_rung():
    samples = [
        {"rung": "00", "decoded_tokens": 100, "decode_seconds": 2.0, "limit_seconds": 0.5},
        {"rung": "01", "decoded_tokens": 100, "decode_seconds": 1.0, "limit_seconds": 0.5},
        {"rung": "00", "decoded_tokens": 100, "decode_seconds": 4.0, "limit_seconds": 0.5},
    ]
    assert ladder_rates({"samples": samples}) == {"00": [50.0, 25.0], "01": [100.0]}
    assert ladder_limit({"samples": samples}) == 200


def test_recorded_host_times_of_a_batch_size_are_pooled():
    first = host_time_record()["samples"][0]
    second = {**first, "step_seconds": [3.0, 4.0]}
    larger = {**first, "batch_size": 4}
    times = host_times({"samples": [first, larger, second]})
    assert list(times) == ["00"] and [t.batch_size for t in times["00"]] == [2, 4]
    assert times["00"][0].step_seconds == (1.0, 2.0, 3.0, 4.0)
    assert len(times["00"][0].append_seconds) == 4


def test_two_rungs_of_a_ladder_are_compared_run_by_run():
    samples = [
        {"rung": rung, "decode_seconds": seconds, "append_paths": {"in_place": 2}}
        for rung, seconds in (("00", 2.0), ("01", 1.0), ("01", 1.1), ("00", 2.2))
    ]
    made = ladder_comparison({"samples": samples}, "00", "01", path="boundary")
    assert (made.before_samples, made.after_samples) == ((2.0, 2.2), (1.0, 1.1))
    assert made.after_paths == {"in_place": 4} and "never ran" in made.warning


def test_two_rungs_host_times_are_compared_by_their_median_steps():
    runs = [
        ("00", [4.0, 5.0, 9.0]),
        ("01", [1.0, 2.0, 9.0]),
        ("01", [2.0, 2.0, 2.0]),
        ("00", [6.0, 6.0, 6.0]),
    ]
    samples = [{"rung": r, "batch_size": b, "step_seconds": s} for r, s in runs for b in (8, 64)]
    made = host_comparison({"samples": samples}, "00", "01", 64)
    assert (made.before_samples, made.after_samples) == ((5.0, 6.0), (2.0, 2.0))
