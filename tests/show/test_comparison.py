"""Comparisons: dots, intervals, verdicts, colours."""

import numpy as np
import pytest
from figures import comparison, lines, texts, tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import BLUE, GREY, GREY_INK, RED


def test_comparison_has_a_dot_a_bar_and_a_verdict_for_each_row():
    rows = {"here": comparison(2.0), "recorded": comparison(1.0), "elsewhere": comparison(0.5)}
    figure = show.draw_comparison(rows)
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines(figure, "o")]
    assert dots == [(pytest.approx(2.0), 0), (pytest.approx(1.0), 1), (pytest.approx(0.5), 2)]
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 8]
    assert [tuple(bar.get_xdata()) for bar in bars] == [tuple(c.interval) for c in rows.values()]
    assert texts(figure)[::2] == ["faster", "cannot tell", "slower"]
    assert texts(figure)[1] == f"×2.000 {rows['here'].interval}"
    assert tick_labels(figure.axes[0].yaxis) == ["here", "recorded", "elsewhere"]


def test_comparison_is_coloured_by_its_verdict():
    rows = {"a": comparison(2.0), "b": comparison(1.0), "c": comparison(0.5)}
    figure = show.draw_comparison(rows)
    dots = lines(figure, "o")
    assert all(same_color(d.get_color(), c) for d, c in zip(dots, (BLUE, GREY, RED), strict=True))
    verdicts = figure.axes[0].texts[::2]
    assert [text.get_color() for text in verdicts] == [BLUE, GREY_INK, RED]


def test_comparison_says_which_side_is_faster():
    figure = show.draw_comparison({"here": comparison(2.0)})
    axes = figure.axes[0]
    (no_difference,) = [line for line in axes.lines if list(line.get_xdata()) == [1, 1]]
    assert list(no_difference.get_ydata()) == [0, 1]  # of the axes' height
    assert axes.get_xlim()[0] < 1 < axes.get_xlim()[1]
    assert axes.get_xlabel() == "speed-up: time before / time after, medians (bar: 99 % interval)"
    assert title(figure) == "Right of 1: faster. Left of 1: slower. A bar across 1 cannot tell"


@pytest.mark.parametrize(("ratio", "scale"), [(0.5, "linear"), (0.1, "log")])
def test_ratios_that_lie_far_apart_have_a_logarithmic_axis(ratio, scale):
    axes = show.draw_comparison({"a": comparison(ratio), "b": comparison(3.0)}).axes[0]
    assert axes.get_xscale() == scale
    assert all(label.startswith("×") for label in tick_labels(axes.xaxis) if label)


def test_published_ratios_are_hollow_diamonds_with_the_series_drift():
    figure = show.draw_comparison({"here": comparison(1.5)}, {"write-up 036": 1.025}, drift=0.02)
    (diamond,) = lines(figure, "D")
    assert (diamond.get_xdata()[0], diamond.get_ydata()[0]) == (1.025, 1)
    assert diamond.get_markerfacecolor() == "white"
    assert texts(figure)[2:] == ["published by the write-up", "×1.025; its series drifts by 2.0 %"]
    drift = [line for line in figure.axes[0].lines if line.get_linewidth() == 8][1]
    np.testing.assert_allclose(drift.get_xdata(), [1.025 / 1.02, 1.025 * 1.02])
    assert tick_labels(figure.axes[0].yaxis) == ["here", "write-up 036"]


def test_without_drift_a_published_ratio_stands_alone():
    figure = show.draw_comparison({}, {"write-up 038": 2.313})
    assert texts(figure) == ["published by the write-up", "×2.313"]
    assert not [line for line in figure.axes[0].lines if line.get_linewidth() == 8]


def test_a_path_that_never_ran_takes_the_verdicts_place():
    figure = show.draw_comparison({"here": comparison(2.0, path="full_batch")})
    assert texts(figure)[0] == "'full_batch' never ran"
    assert figure.axes[0].texts[0].get_color() == RED
    (dot,) = lines(figure, "o")
    assert same_color(dot.get_color(), GREY)
