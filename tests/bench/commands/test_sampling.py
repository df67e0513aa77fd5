"""`sampling`: two rungs in turn for each manner of sampling, a table and a record."""

import json

import pytest
from bench_commands import bench, refusal

from labkit.bench.commands.sampling import MANNERS
from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_every_manner_runs_on_both_rungs_with_the_same_tokens(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    size = "--num-requests 3 --max-batch-size 2 --max-new-tokens 3 --rounds 1"
    bench(monkeypatch, f"sampling --model data/tiny-gpt2 --device cpu {size} --json {out}")
    printed = capsys.readouterr().out
    assert "3 requests x 3 tokens" in printed and "too few rounds for a verdict" in printed
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    order = [(sample["manner"], sample["rung"]) for sample in recorded["samples"]]
    assert order == [(manner, rung) for manner in MANNERS for rung in ("11", "11", "12", "12")]
    for sample in recorded["samples"]:
        assert sample["tokens"] == 9 and sample["equal_requests"] == 3  # on a CPU no sum is added otherwise
        assert sample["decode_steps"] == 4 and sample["decode_seconds"] > 0  # two batches of two steps


def test_nothing_to_decode_is_refused(monkeypatch, capsys):
    said = refusal(monkeypatch, capsys, "sampling --model data/tiny-gpt2 --device cpu --max-new-tokens 1")
    assert "--max-new-tokens 1 decodes nothing" in said
