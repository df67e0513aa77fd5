"""`faults`: a line for each rung, a record, and one schedule by its number."""

import json

import pytest
from bench_commands import bench

from labkit.bench import faults
from labkit.bench.commands import faults as command
from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_faults_counts_what_became_of_each_rungs_schedules(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"faults --device cpu --rungs 00,10 --schedules 3 --seed 4 --json {out}")
    printed = capsys.readouterr().out
    assert "rung 00: 3 schedules" in printed and "0 failed" in printed
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    assert [(s["rung"], s["schedules"], s["fell"]) for s in recorded["samples"]] == [
        ("00", 3, []),
        ("10", 3, []),
    ]


def test_a_schedule_that_falls_is_printed_with_what_runs_it_again(monkeypatch, capsys):
    def falls(options, schedule, device):
        raise AssertionError("lost")

    monkeypatch.setattr(command, "run_schedule", falls)
    bench(monkeypatch, "faults --device cpu --rungs 02 --schedules 2 --seed 4")
    printed = capsys.readouterr().out
    assert "2 failed" in printed and "--rungs 02 --seed 4 --only 1: AssertionError('lost')" in printed
    with pytest.raises(AssertionError, match="lost"):
        bench(monkeypatch, "faults --device cpu --rungs 02 --seed 4 --only 1")


def test_a_planted_interrupt_is_counted_and_yours_is_raised(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_schedule", interrupted)
    with pytest.raises(SystemExit) as ended:
        bench(monkeypatch, "faults --device cpu --rungs 02 --schedules 2")
    assert ended.value.code == 130


def test_a_number_runs_the_same_schedule_again():
    made = [command.run_numbered("05", 3, 1, "cpu") for _ in range(2)]
    assert made[0] == made[1] and isinstance(made[0], faults.Outcome)
