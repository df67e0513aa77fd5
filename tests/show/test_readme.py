"""What the README shows is what was recorded."""

from dataclasses import replace

import pytest
from PIL import Image

from labkit.ladder import LADDER, LESSONS
from labkit.paths import ROOT
from labkit.results import load, load_gpu_tests
from labkit.show import readme

TEXT = readme.README.read_text(encoding="utf-8")


def test_the_ladder_table_is_that_of_the_records():
    """If it is not: `python -m labkit.show.readme`."""
    assert readme.TABLE.findall(TEXT) == [readme.ladder_table()]


def test_the_peers_table_is_that_of_the_records():
    """If it is not: `python -m labkit.show.readme`. Each record has runs of each engine."""
    assert readme.PEERS.findall(TEXT) == [readme.peers_table()]
    assert len(readme.peers_table().splitlines()) == 2 + len(readme.PEER_RECORDS)


def test_the_line_about_other_models_is_that_of_their_records():
    """If it is not: `python -m labkit.show.readme`. Both were measured on one kind of GPU."""
    assert readme.MODELS.findall(TEXT) == [readme.models_line()]
    records = [load(name) for name in readme.MODEL_RECORDS]
    assert len({(record.host.device, record.ours) for record in records}) == 1


def test_the_tables_of_the_loads_are_those_of_their_record():
    """If they are not: `python -m labkit.show.readme`."""
    assert readme.LOADS.findall(TEXT) == [readme.loads_texts()]


def test_a_record_without_arrivals_has_no_table_of_latency(monkeypatch):
    whole = load("loads_cpu")
    few = replace(whole, samples=tuple(s for s in whole.samples if s.load in ("sampled", "ragged")))
    monkeypatch.setattr(readme, "load", lambda name, kind: few)
    machine, rates, left_out = readme.loads_text("loads_cpu").split("\n\n")
    assert f"{whole.num_requests} requests of" in machine
    assert rates.splitlines()[0] == "| engine | sampled | ragged |"
    assert left_out.startswith("Left out: PyTorch, a compiled loop (")


def test_loads_have_a_row_for_each_engine_that_ran_and_a_reason_for_each_that_did_not():
    machine, rates, latency, left_out = readme.loads_text("loads_cpu").split("\n\n")
    record = load("loads_cpu")
    assert f"{record.num_requests} requests of" in machine and "reading alone" in machine
    assert rates.splitlines()[0] == f"| engine | {' | '.join(record.loads)} |"
    ran = dict.fromkeys(run.engine for run in record.samples)
    assert [row.split(" | ")[0] for row in rates.splitlines()[2:]] == [
        *(f"| {engine}" for engine in ran),
        "| limit: bytes and arithmetic",
    ]
    assert "–" in rates and "vllm" not in rates + left_out
    assert latency.splitlines()[0] == (
        "| engine | TTFT p50 (ms) | TTFT p99 (ms) | ITL p50 (ms) | ITL p99 (ms) |"
    )
    assert "Left out: PyTorch, a compiled loop (ragged): its requests have prompts" in left_out
    assert machine.endswith("without the package of flash attention.")


def test_the_line_about_the_h200_is_that_of_its_records():
    """If it is not: `python -m labkit.show.readme`."""
    assert readme.H200.findall(TEXT) == [readme.h200_line()]
    assert all("H200" in load(name).host.device for name in readme.H200_RECORDS)


def test_the_line_about_measured_tiles_is_that_of_its_records():
    """If it is not: `python -m labkit.show.readme`."""
    assert readme.TILES.findall(TEXT) == [readme.tiles_line()]
    tiles, *runs = map(load, (readme.TILES_RECORD, *readme.TILES_RUNS))
    assert len({record.host.device for record in (tiles, *runs)}) == 1
    assert len({record.model for record in runs}) == 1 and all(tile.gain > 1 for tile in tiles.samples)


def test_the_line_about_the_installation_is_what_was_measured():
    """If it is not: `python -m labkit.show.readme`."""
    assert readme.INSTALLATION.findall(TEXT) == [readme.installation_line()]


def test_the_line_about_the_gpu_tests_is_that_of_their_record():
    """If it is not: `python -m labkit.show.readme`. The record itself comes from `make test-gpu`."""
    assert readme.GPU_TESTS.findall(TEXT) == [readme.gpu_tests_line()]
    tests = load_gpu_tests()
    assert tests.failed == 0 and tests.passed > 100


@pytest.mark.parametrize("name", readme.PICTURES)
def test_a_picture_is_of_the_record_that_is_here(name):
    path = readme.picture(name)
    assert Image.open(path).text["Source"] == readme.record_hash(name)
    assert f"({path.relative_to(ROOT).as_posix()})" in TEXT


def test_every_rung_has_its_row_with_its_figures():
    rows = readme.ladder_table().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {number}" for number in LESSONS]
    *measured, last = rows  # the capstone has nothing of its own to measure
    timed = load("host_time_h100").times
    assert [row.endswith(" ms |") for row in measured] == [number in timed for number in LADDER]
    assert last.endswith("| | | |")
    assert [("×" in row) for row in rows] == [False, *[True] * (len(rows) - 2), False]


def test_all_rungs_in_the_table_ran_on_one_kind_of_gpu():
    assert {load(name).host.device for name in readme.LADDER_RECORDS} == {"NVIDIA H100 80GB HBM3"}


def test_a_steps_verdict_comes_with_its_interval():
    said = readme.step_from(load("ladder_036_h100"), "01", "02")
    factor, low, high = (float(part.strip("×(): ")) for part in said.split(":")[0].replace("to", "").split())
    assert low < factor < high and low > 2.0  # batched append: at least twice as fast, and the interval too
    assert said.endswith("faster")


def test_the_sentence_after_the_table_is_about_the_record():
    """The words beside the table name the workload; the record must be of it."""
    record = load("ladder_036_h100")
    assert (record.num_requests, record.max_new_tokens, record.max_batch_size) == (64, 512, 64)
    assert record.model == "random:gpt2" and "64 requests of 512 tokens in a batch of 64" in TEXT
    assert "H100" in record.host.device
