"""`device-time`: kernels in a table, the longest first; and no GPU, no times."""

import pytest
from bench_commands import refusal

from labkit.bench.commands.device_time import kernel_table
from labkit.bench.device_time import KernelTime
from labkit.results import TracedStep


def test_the_table_has_the_twelve_longest_kernels_with_names_that_fit():
    kernels = [KernelTime("k" * 99, 12.04, 50.06), *(KernelTime(f"kernel {i}", 1, 40 - i) for i in range(20))]
    table = kernel_table(TracedStep("09", 8, 256, 1000.0, 900.0, tuple(kernels)))
    assert list(table.index) == ["k" * 70, *(f"kernel {i}" for i in range(11))]
    assert table.columns.tolist() == ["per step", "µs"]
    assert table.iloc[0].tolist() == [12.0, 50.1] and table["µs"].tolist()[1:3] == [40, 39]


@pytest.mark.slow
def test_without_a_gpu_the_command_is_refused(monkeypatch, capsys):
    line = "device-time --model data/tiny-gpt2 --device cpu --rungs 00 --batch-sizes 1 --context 8 --steps 2"
    assert "the time of kernels is measured on a CUDA GPU" in refusal(monkeypatch, capsys, line)
