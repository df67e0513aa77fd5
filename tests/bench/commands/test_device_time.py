"""`device-time`: kernels in a table, the longest first; and no GPU, no times."""

import pytest

from labkit.bench.commands.device_time import WARMUP_STEPS, kernel_table, read_device_time
from labkit.results import TracedStep
from labkit.results.profiles import KernelTime

NUM_STEPS = 3


def trace_of(step: list[tuple[str, float, float]], length: float) -> list[dict]:
    """A step's events (name, start, duration), WARMUP_STEPS + NUM_STEPS times, `length` apart."""
    return [
        {
            "cat": "gpu_memcpy" if "Memcpy" in name else "kernel",
            "name": name,
            "ts": i * length + ts,
            "dur": dur,
        }
        for i in range(WARMUP_STEPS + NUM_STEPS)
        for name, ts, dur in step
    ] + [{"cat": "cpu_op", "name": "aten::add", "ts": 0.0, "dur": 1e9}]


def test_a_kernel_launched_early_is_counted_from_the_end_of_the_one_before():
    """b begins at 2 and waits inside until a ends at 10; it works for 5."""
    made = read_device_time(
        trace_of([("a", 0, 10), ("b", 2, 13), ("Memcpy DtoH", 16, 1)], 20), "10", 4, 99, NUM_STEPS
    )
    assert {k.name: k.us for k in made.kernels} == pytest.approx({"a": 10, "b": 5, "Memcpy DtoH": 1})
    assert [k.name for k in made.kernels] == ["a", "b", "Memcpy DtoH"]
    assert made.step_us == pytest.approx(20) and made.gpu_busy_us == pytest.approx(16)
    assert made.idle_share == pytest.approx(0.2)
    assert (made.rung, made.batch_size, made.context_len) == ("10", 4, 99)


def test_a_step_may_end_with_two_copies():
    """As on the rungs whose tokens are sampled by the host: whether logits are finite, and the tokens."""
    step = [("a", 0, 10), ("Memcpy DtoH", 12, 1), ("Memcpy DtoH", 15, 1)]
    made = read_device_time(trace_of(step, 20), "10", 1, 1, NUM_STEPS)
    assert {k.name: (k.count, k.us) for k in made.kernels} == {"a": (1, 10), "Memcpy DtoH": (2, 2)}
    assert made.step_us == pytest.approx(20)


def test_the_table_has_the_twelve_longest_kernels_with_names_that_fit():
    kernels = [KernelTime("k" * 99, 12.04, 50.06), *(KernelTime(f"kernel {i}", 1, 40 - i) for i in range(20))]
    table = kernel_table(TracedStep("09", 8, 256, 1000.0, 900.0, tuple(kernels)))
    assert list(table.index) == ["k" * 70, *(f"kernel {i}" for i in range(11))]
    assert table.columns.tolist() == ["per step", "µs"]
    assert table.iloc[0].tolist() == [12.0, 50.1] and table["µs"].tolist()[1:3] == [40, 39]
