"""What cutting a model gains: a panel per model, a point with its interval per number of requests."""

import pytest

from labkit import show
from labkit.results import Comparison


def compared(before, after):
    return Comparison("one", "cut", before, after, {}, {})


def test_every_comparison_has_its_point_and_its_interval():
    faster, slower = compared((2.0,) * 4, (1.0,) * 4), compared((1.0,) * 4, (2.0,) * 4)
    unknown = compared((1.0, 1.3, 1.0, 1.3), (1.2, 1.0, 1.2, 1.0))
    fig = show.draw_gains(
        {
            "large": {"2 × H100": {1: faster, 32: unknown}, "4 × H200": {1: faster}},
            "small": {"2 × H100": {32: slower}},
        }
    )
    large, small = fig.axes
    assert (large.get_title("left"), small.get_title("left")) == ("large", "small")
    points = [line for line in large.lines if line.get_marker() == "o"]
    assert [point.get_ydata()[0] for point in points] == pytest.approx([2, unknown.speedup, 2])
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, False]
    assert [label.get_text() for label in small.get_xticklabels()] == ["1", "32"]
    assert "large, small" in fig.get_label()
