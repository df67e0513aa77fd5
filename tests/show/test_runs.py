"""Runs before and after, their means, and whether their ranges overlap."""

from figures import texts, titles

from labkit import show
from labkit.show.runs import overlap


def test_means_of_runs_are_means():
    figure = show.draw_runs({"a": ((100, 100, 190), (200, 200, 500))})
    assert texts(figure) == ["mean 130", "mean 300"]


def test_runs_overlap_between_the_higher_low_and_the_lower_high():
    assert overlap((1, 3), (2, 5)) == (2, 3) == overlap((2, 5), (1, 3))
    assert overlap((1, 2), (2, 3)) == (2, 2)
    assert overlap((1, 2), (3, 4)) is None is overlap((3, 4), (1, 2))


def test_runs_are_dots_with_their_mean_and_their_overlap():
    figure = show.draw_runs({"a": ((100, 140), (120, 200)), "b": ((1, 2), (3, 4))})
    first, second = figure.axes
    assert titles(figure) == ["a: they overlap from 120 to 140", "b: they do not overlap"]
    dots = [line for line in first.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [[100, 140], [120, 200]]
    means = [line.get_xdata()[0] for line in first.lines if line.get_marker() != "o"]
    assert means == [120, 160]
    assert [text.get_text() for text in first.texts] == ["mean 120", "mean 160"]
    (band,) = first.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (120, 140)
    assert not second.patches
    assert second.get_xlabel() == "tokens per second (dot: a run; line: their mean)"
