"""Lesson 15's gap: the floors of a step's parts, and what is left above them."""

import pytest
from made_records import traced

from labkit import load_model, show
from labkit.bench.limit import decode_limit
from labkit.learn.lesson_15 import gap
from labkit.results import KernelTime
from labkit.results.kernels import ATTENTION, HEAD, IDLE, part_us

STEP = traced(
    "10",
    2,
    100.0,
    95.0,
    (
        KernelTime("_split_paged_attn_append_kernel", 12, 20.0),
        KernelTime("_norm_linear_kernel", 24, 30.0),
        KernelTime("_linear_residual_kernel", 24, 10.0),
        KernelTime("nvjet_hsh_64x8", 1, 25.0),
        KernelTime("void at::native::layer_norm(float*)", 1, 7.0),
        KernelTime("Memcpy DtoH (Device -> Pinned)", 1, 3.0),
    ),
    context_len=9,
)
BANDWIDTH = 2e12


@pytest.mark.slow
def test_the_floors_are_the_limit_of_the_step():
    floors = gap.step_floors(STEP, BANDWIDTH)
    limit = decode_limit(load_model("random:gpt2").network.half(), [9, 9], BANDWIDTH)
    assert sum(floors.values()) == pytest.approx(1e6 * limit.seconds)
    assert floors[ATTENTION] == pytest.approx(1e6 * limit.kv_bytes / BANDWIDTH)


def test_the_gap_is_shared_out():
    table = gap.gap_table(STEP, BANDWIDTH)
    assert sum(table["% of the gap"].astype(float)) == pytest.approx(100, abs=2)
    assert table.loc[IDLE, "at the limit"] == 0


def test_what_one_kernel_takes():
    table = gap.kernels_table(STEP, BANDWIDTH)
    assert list(table["kernels per step"]) == [12, 48, 1]
    assert table.loc[HEAD, "us each"] == 25.0


def test_the_parts_are_drawn_over_their_floors():
    both = part_us(STEP), gap.step_floors(STEP, BANDWIDTH)
    fig = show.draw_step_parts({"B = 2": both})
    (axes,) = fig.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["B = 2, measured", "B = 2, at the limit"]
    assert axes.texts[0].get_text().strip() == "100 µs"
