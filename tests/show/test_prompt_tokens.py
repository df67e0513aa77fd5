"""Curves and bars of prompt tokens."""

from itertools import pairwise

from figures import tick_labels, title

from labkit import show


def test_each_curve_is_drawn_from_0_with_its_name():
    figure = show.draw_curves({"old": {1: 10, 3: 4000}, "new": {1: 5, 3: 6}}, "requests", "tokens", "A title")
    (axes,) = figure.axes
    assert [list(line.get_xydata().ravel()) for line in axes.lines] == [[1, 10, 3, 4000], [1, 5, 3, 6]]
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel(), title(figure)) == ("requests", "tokens", "A title")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["old", "new"]
    assert "4,000" in tick_labels(axes.yaxis)
    assert {line.get_marker() for line in axes.lines} == {"o"}


def test_curves_that_lie_on_each_other_look_different():
    same = {1: 1.0, 2: 2.0}
    figure = show.draw_curves(dict.fromkeys("abcd", same), "x", "y", "t", marked=False)
    looks = {(line.get_linestyle(), line.get_linewidth()) for line in figure.axes[0].lines}
    assert len(looks) == 4 and {line.get_marker() for line in figure.axes[0].lines} == {""}


def test_a_turn_has_a_bar_per_engine_side_by_side():
    figure = show.draw_turns({"old": [9, 5], "new": [9, 2]}, "A talk")
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [9, 5, 9, 2]
    edges = sorted((round(bar.get_x(), 2), round(bar.get_x() + bar.get_width(), 2)) for bar in axes.patches)
    assert all(left[1] <= right[0] for left, right in pairwise(edges))
    assert tick_labels(axes.xaxis) == ["1", "2"] and title(figure) == "A talk"
