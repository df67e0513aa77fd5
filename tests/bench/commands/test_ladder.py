"""`ladder`: every rung, in turn."""

import json

import pytest
from bench_commands import TINY, bench

from labkit import LADDER
from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_ladder_runs_every_rung_in_turn_and_records_them(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"ladder {TINY} --max-new-tokens 4 --no-stop-on-eos --rounds 1 --json {out}")
    printed = capsys.readouterr().out
    assert all(rung.title in printed for rung in LADDER.values())
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    assert [sample["rung"] for sample in recorded["samples"]] == [n for n in LADDER for _ in range(2)]
