"""`cost-card`: every rung and batch."""

import json

import pytest
from bench_commands import bench

from labkit.bench.commands.cost_card import cards_text
from labkit.results import files, load
from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_cost_card_counts_every_rung_and_batch(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)  # the GPU's rows are looked for in every record there is
    out = tmp_path / "out.json"
    line = "cost-card --device cpu --models data/tiny-gpt2 --batch-sizes 1,2 --prompt-lengths 20:20,23"
    bench(monkeypatch, f"{line} --json {out}")
    assert "calls into KVBlockManager" in capsys.readouterr().out
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    lengths = [sample["key"]["prompt_lens"] for sample in recorded["samples"] if sample["rung"] == "00"]
    assert lengths == [[20], [20], [20, 20], [20, 23]]


def test_a_gpus_recorded_counts_are_told_as_such_in_lines_that_a_terminal_holds(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    recorded = load("cost_cards_h100").cards({20}, "data/tiny-gpt2")
    said = cards_text({rung: card for (rung, size), card in recorded.items() if size == 8})
    first, head, *rows = said.splitlines()
    assert first == "GPU rows: counted on NVIDIA H100 80GB HBM3"
    assert head.split()[:2] == ["rung", "00"] and max(map(len, said.splitlines())) <= 100
    assert any(row.startswith("GPU: kernels launched") for row in rows)
