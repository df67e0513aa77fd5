"""Lesson 09: recorded steps and recorded attention, as tables and figures."""

import pytest
from made_records import SEPARATE_KERNELS, record_of, traced

from labkit import show
from labkit.bench import step_limit
from labkit.learn.lesson_09 import records
from labkit.results import KernelTime, TracedStep
from labkit.results.attention_time import AttentionTime
from labkit.results.kernels import GROUPS


def step_of(rung: str, batch_size: int, step_us: float, **counts_and_us: tuple[int, float]) -> TracedStep:
    kernels = tuple(KernelTime(name, count, us) for name, (count, us) in counts_and_us.items())
    return traced(rung, batch_size, step_us, 0.9 * step_us, kernels)


FUSED_KERNELS = {
    "_norm_linear_kernel": (24, 60.0),
    "_linear_residual_kernel": (24, 50.0),
    "_split_paged_attn_append_kernel": (12, 30.0),
    "nvjet_hsh_128x8_TNT": (1, 25.0),
    "_best_of_pieces_kernel": (1.0, 3.0),
    "Memcpy DtoH (Device -> Pinned)": (1.0, 2.0),
}
STEPS = [
    step_of("09", 64, 150.0, **FUSED_KERNELS),
    step_of("08", 64, 400.0, **SEPARATE_KERNELS),
    step_of("08", 1, 300.0, **SEPARATE_KERNELS),
    step_of("05", 1, 900.0, **SEPARATE_KERNELS),
]
RECORD = record_of("decode_kernels", STEPS, bandwidth=3e12)


def test_a_step_of_kernels_as_tables():
    steps = records.recorded_steps(RECORD)
    assert list(steps) == [(1, "08"), (64, "08"), (64, "09")]
    table = records.kernel_table(RECORD, 64)
    assert list(table.columns) == ["kernels, 08", "kernels, 09", "us, 08", "us, 09"]
    assert list(table.loc["all"]) == [123, 62, 333, 170]
    whole = records.step_table(RECORD).loc["B = 64, rung 09"]
    assert (whole["kernels"], whole["GPU busy (us)"]) == (62, 135)
    limit_us = 1e6 * step_limit(64, 100, 3e12).seconds
    assert whole["limit, % of busy"] == round(100 * limit_us / 135, 1)


def test_what_each_part_of_a_step_gained():
    record = record_of("decode_kernels", [step for step in STEPS if step.batch_size == 64])
    table = records.gain_table(record)["B = 64"]
    assert list(table.index) == [
        *(f"{part}, {rung}" for part in ("layers' products", "output layer") for rung in ("08", "09")),
        *(f"{part}, {rung}" for part in ("attention", "the rest") for rung in ("08", "09")),
        "GPU busy, times less",
    ]
    assert list(table) == ["124", "110", "30", "25", "60", "30", "119", "5", "2.67"]
    assert records.share_of_small_ones(STEPS[1]) == pytest.approx(143 / 333)


ATTENTION = record_of(
    "attention",
    [
        AttentionTime(kernel, 8, length, 11 if kernel == "split" else 1, (1e-6 * us,), 3_000_000)
        for kernel, length, us in (
            ("one_program", 900, 10.0), ("split", 900, 2.0), ("one_program", 100, 4.0), ("split", 100, 4.0)
        )
    ],
    bandwidth=3e12,
)  # fmt: skip


def test_attention_alone_as_a_table():
    table = records.attention_table(ATTENTION)
    assert list(table.index) == [(8, 100), (8, 900)]
    assert list(table.loc[8, 900]) == [10.0, 2.0, 11, 5.0, 50]


def texts(figure) -> str:
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def test_steps_are_drawn_with_their_limit():
    steps = {f"{step.rung} {step.batch_size}": step for step in STEPS[:3]}
    figure = show.draw_step_kernels(steps, dict.fromkeys(steps, 80.0))
    (axes,) = figure.axes
    assert len(axes.patches) == 3 * len(GROUPS)
    assert [line.get_xdata()[0] for line in axes.lines] == [80.0, 80.0, 80.0]
    assert "123 kernels, 333 µs" in texts(figure) and "62 kernels, 170 µs" in texts(figure)


@pytest.mark.slow
def test_attention_times_are_drawn_a_line_a_kernel_and_batch():
    top, bottom = show.draw_attention_times(ATTENTION.samples, ATTENTION.bandwidth).axes
    one, split = top.lines
    assert list(one.get_xdata()) == [100, 900] and list(split.get_ydata()) == pytest.approx([4.0, 2.0])
    assert list(bottom.lines[1].get_ydata()) == pytest.approx([25.0, 50.0])
