"""The staircase: a bar per rung, the reader's below it, and what may be said of each."""

import pytest
from figures import shown_texts, tick_labels
from matplotlib.colors import same_color

from labkit.show import draw_staircase
from labkit.show.style import BLUE, GREY, ORANGE

PACKAGE = {"00": (8e-3, 8.1e-3) * 4, "01": (8.1e-3, 8e-3) * 4, "10": (1e-4, 1.01e-4) * 4}
YOURS = {"10": (2e-4, 2.01e-4) * 4}


def test_each_rung_is_a_bar_and_yours_is_below_it():
    fig = draw_staircase(PACKAGE, YOURS, 64)
    (axes,) = fig.axes
    assert tick_labels(axes.yaxis) == ["00 An honest paged engine", "01 Block-table cache", "10 Overlap"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([8050, 8050, 100.5, 200.5])
    shades = [bar.get_facecolor()[:3] for bar in axes.patches]
    assert all(map(same_color, shades, (GREY, GREY, BLUE, ORANGE)))
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.62, 0.62, 0.31, 0.31])
    assert axes.get_xscale() == "log"
    texts = shown_texts(fig)
    assert {"8,050 µs", "×1.00", "×0.50", "200 µs, yours"} <= set(texts)
    assert axes.get_title(loc="left") == "Orange: yours. From rung 00 to 10: ×80"
    assert "of 64 requests" in axes.get_xlabel()


def test_with_nothing_kept_and_small_steps_the_axis_is_linear():
    fig = draw_staircase({"06": (2e-3, 2e-3), "07": (1e-3, 1e-3)}, {}, 8)
    (axes,) = fig.axes
    assert axes.get_xscale() == "linear" and axes.get_title(loc="left") == "From rung 06 to 07: ×2"
