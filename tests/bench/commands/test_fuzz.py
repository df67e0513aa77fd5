"""`fuzz`: a line for each kind of files, a record, and one case by its number."""

import contextlib
import json

import pytest
from bench_commands import bench, refusal

from labkit.bench.commands import fuzz as command
from labkit.bench.confined import FellError
from labkit.bench.fuzz import TARGETS, Judged, describe, name_of
from labkit.results.files import record_of


@pytest.fixture
def confined(monkeypatch):
    """A function: have another one judge the cases, in this process."""

    def use(judge):
        monkeypatch.setattr(command, "Confined", lambda *_: contextlib.nullcontext(judge))

    return use


def well(case):
    return Judged(name_of(case), "RecordError" if case.number % 2 else None, 0.25, 1000 + case.number)


def test_fuzz_counts_what_became_of_the_files(monkeypatch, capsys, tmp_path, confined):
    out = tmp_path / "out.json"
    confined(well)
    bench(monkeypatch, f"fuzz --device cpu --cases 1000 --seed 4 --json {out}")
    printed = capsys.readouterr().out
    assert "0 failed; the slowest took 0.25 s" in printed and all(f"{name}: " in printed for name in TARGETS)
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    samples = recorded["samples"]
    assert sum(s["read"] for s in samples) == sum(s["errors"]["RecordError"] for s in samples) == 500
    assert recorded["settings"]["memory"] == [1999]


def test_a_case_that_falls_is_printed_with_what_runs_it_again(monkeypatch, capsys, confined):
    def falls(case):
        raise FellError("it took more than 20 s")

    confined(falls)
    bench(monkeypatch, "fuzz --device cpu --cases 3 --seed 4")
    printed = capsys.readouterr().out
    assert f"--seed 4 --only 1: {describe(command.Case(4, 1))}: it took more than 20 s" in printed
    assert printed.count("--only") == 3


def test_a_number_runs_one_case(monkeypatch, capsys):
    bench(monkeypatch, "fuzz --device cpu --seed 4 --only 1")
    printed = capsys.readouterr().out
    assert describe(command.Case(4, 1)) in printed and "Judged(target=" in printed


@pytest.mark.parametrize(
    "flag", ["--seconds 0", "--seconds x", "--cases 0", "--cases 1.5", "--seed -1", "--only x", "--seed 9e9"]
)
def test_a_number_that_cannot_be_is_refused_by_its_flag(monkeypatch, capsys, flag):
    assert f"argument {flag.split()[0]}: " in refusal(monkeypatch, capsys, f"fuzz {flag}")
