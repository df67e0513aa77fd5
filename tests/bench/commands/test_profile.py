"""`profile`: a step of each batch size."""

import json

import pytest
from bench_commands import bench

pytestmark = pytest.mark.slow


def test_profile_writes_a_record(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    line = "profile --model data/tiny-gpt2 --device cpu --rung 00 --batch-sizes 1,2 --context 8 --steps 2"
    bench(monkeypatch, f"{line} --json {out}")
    recorded = json.loads(out.read_text())
    assert [s["batch_size"] for s in recorded["samples"]] == [1, 2]
    assert [s["append_paths"] for s in recorded["samples"]] == [{"in_place": 12}, {"in_place": 24}]
    assert "of the limit" in capsys.readouterr().out
