"""Recorded results: what each must hold, and that nothing of it is lost when it is read."""

import ast
import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import MEASURED

from labkit.bench.limit import Bandwidth
from labkit.bench.record import make_record, write_record
from labkit.errors import RecordError
from labkit.paths import ROOT
from labkit.results import (
    KINDS,
    GpuTests,
    HostTime,
    HostTimeRecord,
    Record,
    RunsRecord,
    files,
    load,
    load_all,
    table,
)
from labkit.results.files import check_record
from labkit.results.host_time import RungHostTime
from labkit.results.record import RECORD
from labkit.results.shape import OrNull

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("path", MEASURED, ids=lambda p: p.stem)
def test_records_say_where_they_come_from_and_keep_raw_samples(path):
    record = load(path.stem)  # which checks that every sample has what its kind needs
    recorded = json.loads(path.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(record.to_dict())) == recorded
    assert recorded["command"].startswith("python -m labkit.bench ")
    assert " /" not in recorded["command"]  # where it was made is nobody's business
    assert len(recorded["commit"]) == 40
    # A machine that is busy counts as well as an idle one.
    assert recorded["bandwidth"] > (0 if recorded["kind"] in ("faults", "flood") else 1e9)
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


def check_loads(recorded, sample):
    """Every engine made all the tokens that the load asks for, and none went past its limit."""
    settings = recorded["settings"]
    limit = settings["limits"][sample["load"]]
    assert sample["tokens"] == limit["tokens"] <= settings["num_requests"] * settings["max_new_tokens"]
    work = limit["num_bytes"] / recorded["bandwidth"] + limit["prompt_flops"] / settings["matmul_rate"]
    assert max(work, limit["last_arrival"]) < sample["seconds"]
    assert sample["engine"] not in settings["left_out"][sample["load"]]
    if sample["load"] == "arrivals":
        assert len(sample["ttft"]) == settings["num_requests"]
        assert len(sample["itl_us"]) == sample["tokens"] - settings["num_requests"]


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


def check_faults(recorded, sample):
    """Faults came at most of the points, at nearly all of them in a long run, and no schedule fell."""
    share = 0.9 if sample["schedules"] >= 400 else 0.7
    assert sample["schedules"] == recorded["settings"]["schedules"] and sample["fell"] == []
    assert len({fault.split(", ")[0] for fault in sample["fired"]}) > share * sample["num_points"]
    assert {"length", "cancelled"} <= set(sample["ended"])


def check_flood(recorded, sample):
    """Every request has ended, those compared as alone, and no promise was broken."""
    assert sum(sample["ended"].values()) == recorded["settings"]["num_requests"]
    assert sample["checked"] == sample["equal"] > 3
    assert sample["peak_blocks"] <= sample["num_blocks"] and sample["nearest_to_bound"] <= 1
    assert (
        sample["most_passed_over"]
        <= {"fifo": 0, "pack": recorded["settings"]["pack_window"]}[sample["policy"]]
    )
    assert sample["preemptions"] > 0 and len(sample["memory"]) == recorded["settings"]["num_requests"] // 100


def check_fuzz(recorded, sample):
    """Files were read and refused, none of them with another error than their reader's, and no case fell."""
    error = "CheckpointError" if sample["target"].startswith("checkpoint") else "RecordError"
    assert sample["fell"] == [] and set(sample["errors"]) == {error}
    assert min(sample["read"], sample["errors"][error]) > 100
    assert sample["slowest"] < recorded["settings"]["limit_seconds"]


def check_tiles(recorded, sample):
    """Today's tile stays, or another is clearly faster."""
    today, best = np.median(sample["today_seconds"]), np.median(sample["seconds"])
    assert sample["tile"] == sample["today"] or today > 1.02 * best
    assert sample["num_tried"] > 0 and len(sample["seconds"]) == len(sample["today_seconds"])


def check_sampling(recorded, sample):
    """Every run made all its tokens, and all requests got those of the first run."""
    settings = recorded["settings"]
    assert sample["tokens"] == settings["num_requests"] * settings["max_new_tokens"]
    assert sample["decode_steps"] >= settings["max_new_tokens"] - 1
    assert 0 <= sample["equal_requests"] <= settings["num_requests"]
    assert sample["rung"] in ("11", "12")


CHECKS = {
    "sampling": check_sampling,
    "tiles": check_tiles,
    "faults": check_faults,
    "flood": check_flood,
    "fuzz": check_fuzz,
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
    "loads": check_loads,
}


def test_every_kind_is_checked():
    assert set(CHECKS) == set(KINDS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    return tmp_path


def host_time_record(rung: str = "00") -> Record:
    time = HostTime(2, 12, (1.0, 2.0), (0.1, 0.1), (0.1, 0.1))
    return make_record("host_time", CPU, Bandwidth(2e9, 3e9), {"model": "none"}, [RungHostTime(rung, time)])


def test_a_record_is_read_as_the_class_of_its_kind(folder):
    made = host_time_record()
    write_record(made, folder / "mine.json")
    assert load("mine") == made and isinstance(made, HostTimeRecord)
    assert (made.kind, made.model) == ("host_time", "none")
    assert made.time("00", 2).step_seconds == (1.0, 2.0)


def test_a_record_of_another_class_than_asked_for_is_refused(folder):
    made = host_time_record()
    write_record(made, folder / "mine.json")
    assert load("mine", HostTimeRecord) == made
    with pytest.raises(RecordError, match="record mine is of kind host_time, not a RunsRecord"):
        load("mine", RunsRecord)


def test_results_are_rows_of_samples_with_their_machine(folder):
    for name, rung in (("mine", "00"), ("yours", "01")):
        write_record(host_time_record(rung), folder / f"{name}.json")
    rows = table("host_time")
    assert rows["record"].tolist() == ["mine", "yours"] and rows["rung"].tolist() == ["00", "01"]
    assert rows["step_seconds"].tolist() == [(1.0, 2.0)] * 2
    assert rows["model"].tolist() == ["none"] * 2 and rows["bandwidth"].tolist() == [2e9] * 2
    assert isinstance(table("ladder"), pd.DataFrame) and table("ladder").empty


def test_a_record_that_lacks_something_is_refused(folder):
    (folder / "half.json").write_text('{"kind": "profile", "date": "2026-11-21"}')
    with pytest.raises(ValueError, match="half lacks commit, command, host, bandwidth, settings, samples"):
        load("half")


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
        check_record("holed", {**host_time_record().to_dict(), **changes})


def test_a_record_of_another_kind_is_not_read_beyond_its_kind(folder):
    (folder / "broken.json").write_text('{"kind": "profile", and no JSON after that')
    write_record(host_time_record(), folder / "fine.json")
    assert table("host_time")["record"].tolist() == ["fine"]
    with pytest.raises(RecordError, match=r"broken\.json is not valid JSON"):
        load_all("profile")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_record_is_found_by_its_kind_however_it_was_written(folder, indent):
    made = host_time_record()
    raw = made.to_dict()
    for name, order in (("as_made", list(raw)), ("kind_last", [*list(raw)[1:], "kind"])):
        text = json.dumps({key: raw[key] for key in order}, indent=indent)
        (folder / f"{name}.json").write_text(text)
    assert load_all("host_time") == {"as_made": made, "kind_last": made}
    assert load_all("profile") == {}


# --- no key of a record elsewhere ------------------------------------------------------------------------

# Keys of records that are names of other things, too, and of what.
ORDINARY = {
    "after": "published figures",
    "before": "published figures",
    "command": "published figures",
    "host": "columns of a lesson's table",
    "kernels": "columns of a lesson's table",
    "model": "a tokenizer's file",
    "name": "events of a trace",
    "operators": "columns of a profile's table",
    "us": "columns of a lesson's table",
}


def keys_of(shape: object) -> set[str]:
    """Every key that a shape names, at any depth."""
    if isinstance(shape, dict):
        named = {key for key in shape if isinstance(key, str)}
        return named.union(*map(keys_of, shape.values()))
    if isinstance(shape, list | tuple):
        return set().union(*map(keys_of, shape))
    return keys_of(shape.shape) if isinstance(shape, OrNull) else set()


KEYS = set().union(
    keys_of(RECORD), keys_of(GpuTests.SHAPE), *(keys_of((k.SAMPLE.SHAPE, k.SETTINGS)) for k in KINDS.values())
)


def keys_read(source: str) -> list[str]:
    """Keys that stand as text in `x["key"]` or `x.get("key")`."""
    read = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript):
            read.append(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            read += node.args[:1]
    return [
        key.value for key in read if isinstance(key, ast.Constant) and key.value in KEYS - ORDINARY.keys()
    ]


READERS = {*(ROOT / "labkit" / "results").glob("*.py"), ROOT / "labkit" / "bench" / "record.py"}
SOURCES = sorted({*(ROOT / "labkit").rglob("*.py")} - READERS)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_record_is_read_through_its_class(path):
    assert keys_read(path.read_text(encoding="utf-8")) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_records_through_their_classes(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [key for source in code for key in keys_read(source)] == []


def test_a_read_key_is_noticed():
    assert keys_read('record["samples"][0]["decode_seconds"]') == ["decode_seconds", "samples"]
    assert keys_read('run.get("itl_us", [])') == ["itl_us"]
    assert ORDINARY.keys() <= KEYS


# --- which way imports run ---------------------------------------------------------------------------------

BELOW = {"checks", "errors", "json_file", "options", "paths", "results"}  # what readers stand on


@pytest.mark.parametrize(
    "path", sorted((ROOT / "labkit" / "results").glob("*.py")), ids=lambda path: path.stem
)
def test_readers_know_no_engine(path):
    imported = [
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("labkit")
    ]
    assert {module.split(".")[1] for module in imported} <= BELOW
