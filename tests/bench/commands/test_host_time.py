"""`host-time`: a row for each rung, a column for each batch size."""

import json

import pytest
from bench_commands import bench

from labkit import LADDER
from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_host_time_prints_rungs_by_batch_size(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"host-time --device cpu --batch-sizes 1,2 --steps 3 --rounds 1 --json {out}")
    printed = capsys.readouterr().out
    assert "B = 1" in printed and "00 step" in printed
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    made = [(sample["rung"], sample["batch_size"]) for sample in recorded["samples"]]
    assert made == [(rung, b) for rung in LADDER for b in (1, 1, 2, 2)]
