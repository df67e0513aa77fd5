"""`attention`: every batch size with every context."""

import json

import pytest
from bench_commands import bench

from labkit.bench import record
from labkit.bench.attention_time import AttentionTime
from labkit.bench.commands.attention import attention_table


@pytest.mark.slow
def test_every_batch_size_is_measured_with_every_context(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"attention --device cpu --batch-sizes 1,2 --contexts 3,70 --repeats 2 --json {out}")
    recorded = json.loads(out.read_text())
    record.record_of(recorded, "out")
    sizes = [(sample["batch_size"], sample["context_len"]) for sample in recorded["samples"]]
    assert sizes == [(1, 3), (1, 70), (2, 3), (2, 70)]
    assert recorded["kind"] == "attention" and recorded["settings"]["contexts"] == [3, 70]
    assert "% of copy" in capsys.readouterr().out


def test_the_table_holds_each_kernels_rate_against_a_copys():
    times = [
        AttentionTime(kernel, 8, 900, splits, (us * 1e-6,) * 3, num_bytes=2000)
        for kernel, splits, us in (("one_program", 1, 4.0), ("split", 8, 2.0))
    ]
    table = attention_table(times, bandwidth=4e9)
    assert table.loc[(8, 900, "one_program")].tolist() == [1, 4.0, 12.5]
    assert table.loc[(8, 900, "split")].tolist() == [8, 2.0, 25.0]
