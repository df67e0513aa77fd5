"""`cost-card`: every rung and batch."""

import pytest

from labkit.bench.commands.cost_card import cards_text
from labkit.results import files, load

pytestmark = pytest.mark.slow


def test_cost_card_counts_every_rung_and_batch(monkeypatch, recorded, capsys, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)  # the GPU's rows are looked for in every record there is
    line = "cost-card --device cpu --models random:small --batch-sizes 1,2"
    samples = recorded(line)["samples"]
    assert "calls into KVBlockManager" in capsys.readouterr().out
    lengths = [sample["key"]["prompt_lens"] for sample in samples if sample["rung"] == "00"]
    assert lengths == [[20], [20], [20, 20], [20, 23]]


def test_a_gpus_recorded_counts_are_told_as_such_in_lines_that_a_terminal_holds(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    recorded = load("cost_cards_h100").cards({20}, "data/tiny-gpt2")
    said = cards_text({rung: card for (rung, size), card in recorded.items() if size == 8})
    first, head, *rows = said.splitlines()
    assert first == "GPU rows: counted on NVIDIA H100 80GB HBM3"
    assert head.split()[:2] == ["rung", "00"] and max(map(len, said.splitlines())) <= 100
    assert any(row.startswith("GPU: kernels launched") for row in rows)
