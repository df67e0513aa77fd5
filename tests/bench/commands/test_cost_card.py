"""`cost-card`: every rung and batch."""

import json

import pytest
from bench_commands import bench

from labkit.results import files
from labkit.results.files import check_record

pytestmark = pytest.mark.slow


def test_cost_card_counts_every_rung_and_batch(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)  # the GPU's rows are looked for in every record there is
    out = tmp_path / "out.json"
    line = "cost-card --device cpu --models data/tiny-gpt2 --batch-sizes 1,2 --prompt-lengths 20:20,23"
    bench(monkeypatch, f"{line} --json {out}")
    assert "calls into KVBlockManager" in capsys.readouterr().out
    recorded = json.loads(out.read_text())
    check_record("out", recorded)
    lengths = [sample["key"]["prompt_lens"] for sample in recorded["samples"] if sample["rung"] == "00"]
    assert lengths == [[20], [20], [20, 20], [20, 23]]
