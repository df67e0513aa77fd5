"""`kv-append`: every path at every size."""

import json

import pytest
from bench_commands import bench

from labkit.results.files import record_of

pytestmark = pytest.mark.slow


def test_kv_append_times_every_path_at_every_size(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"kv-append --device cpu --batch-sizes 1,2 --repeats 2 --json {out}")
    assert "full_batch (us)" in capsys.readouterr().out
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    paths = ["indexed", "generic", "full_batch", "identity_pos"]
    assert [(s["batch_size"], s["path"]) for s in recorded["samples"]] == [
        (b, p) for b in (1, 2) for p in paths
    ]
    assert recorded["samples"][0]["num_bytes"] == 2 * 2 * 12 * 64 * 4  # keys, values; read, written
