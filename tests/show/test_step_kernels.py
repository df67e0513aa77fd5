"""The kernels of a layer and of a step."""

import pytest
from figures import shown_texts, tick_labels
from made_records import traced
from matplotlib.colors import same_color

from labkit import show
from labkit.results.device_time import KernelTime
from labkit.results.kernels import GROUPS
from labkit.show.step_kernels import KernelBox
from labkit.show.style import BLUE, GREY, ORANGE


def test_a_layers_kernels_stand_where_those_of_the_row_above_do():
    rows = {
        "apart": [KernelBox("norm", 1, 10), KernelBox("linear", 1, 30), KernelBox("attention", 1, 20)],
        "fused": [KernelBox("norm_linear", 2, 30), KernelBox("attention", 1, 20)],
    }
    axes = show.draw_layer_kernels(rows).axes[0]
    assert [box.get_x() for box in axes.patches] == pytest.approx([0.04, 1.04, 2.04, 0.04, 2.04])
    assert tick_labels(axes.yaxis) == ["apart 3 kernels", "fused 2 kernels"]


def test_a_layer_is_drawn_box_by_box():
    rows = {
        "below": [show.KernelBox("layer_norm", 1, 10), show.KernelBox("linear", 1, 30)],
        "here": [show.KernelBox("norm_linear", 2, 30)],
    }
    figure = show.draw_layer_kernels(rows)
    (axes,) = figure.axes
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([0.92, 0.92, 1.92])
    assert "norm_linear" in shown_texts(figure) and "30" in shown_texts(figure)


def test_errors_are_drawn_a_line_a_formula():
    figure = show.draw_errors(
        {"one": {"a": [1e-3, 1.0], "b": [0.0, 1e-3]}, "two": {"a": [1, 1]}}, [1, 10], 0.5
    )
    first, second = figure.axes
    assert (len(first.lines), len(second.lines)) == (3, 2)
    assert min(first.lines[1].get_ydata()) == 1e-8  # an error of 0 has a place on a logarithmic axis


def test_a_step_is_a_bar_of_its_groups_with_a_line_at_its_limit():
    kernels = {"gemm": 36, "splitKreduce": 12, "attn": 12, "layer_norm": 25, "add": 24, "argmax": 1}

    def step(rung, *us):
        times = (KernelTime(name, kernels[name], time) for name, time in zip(kernels, us, strict=True))
        return traced(rung, 64, 500.0, 400.0, tuple(times))

    steps = {"08": step("08", 100, 200, 60, 30, 5, 5), "09": step("09", 90, 180, 40, 0, 5, 5)}
    figure = show.draw_step_kernels(steps, {"08": 226.0, "09": 226.0})
    (axes,) = figure.axes
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars[:6] == [(0, 100), (100, 200), (300, 60), (360, 30), (390, 5), (395, 5)]
    assert bars[6:] == [(0, 90), (90, 180), (270, 40), (310, 0), (310, 5), (315, 5)]
    assert [list(line.get_xdata()) for line in axes.lines] == [[226, 226]] * 2
    assert shown_texts(figure) == ["110 kernels, 400 µs", "110 kernels, 320 µs"]
    assert tick_labels(axes.yaxis) == ["08", "09"]
    assert axes.get_xlabel() == "microseconds in which the GPU is busy (line: the limit of the step)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(GROUPS)


def test_a_layers_kernels_are_coloured_by_what_they_compute():
    boxes = [KernelBox("norm_linear", 1, 10), KernelBox("attention", 1, 20), KernelBox("gelu", 1, 30)]
    axes = show.draw_layer_kernels({"a": boxes}).axes[0]
    shades = [BLUE, ORANGE, GREY]
    assert all(same_color(b.get_facecolor()[:3], c) for b, c in zip(axes.patches, shades, strict=True))
    assert [text.get_text() for text in axes.texts][1::2] == ["10", "20", "30"]
