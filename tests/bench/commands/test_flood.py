"""`flood`: a few lines for each flood, and a record with one sample for each."""

import json

import pytest
from bench_commands import bench

from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_flood_serves_all_and_says_how(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(
        monkeypatch,
        "flood --device cpu --rungs 07 --num-requests 30 --at-once 20 --longest-prompt 20 "
        f"--max-new-tokens 5 --json {out}",
    )
    printed = capsys.readouterr().out
    assert "rung 07, fifo: 30 requests" in printed and "rung 07, pack: 30 requests" in printed
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    assert [(s["rung"], s["policy"]) for s in recorded["samples"]] == [("07", "fifo"), ("07", "pack")]
    assert [sum(s["ended"].values()) for s in recorded["samples"]] == [30, 30]
