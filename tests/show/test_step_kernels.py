"""The kernels of a layer and of a step."""

import pytest
from figures import shown_texts, tick_labels

from labkit import show
from labkit.show.step_kernels import KernelBox


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
