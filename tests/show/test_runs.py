"""Runs before and after, their means, and whether their ranges overlap."""

from figures import texts

from labkit import show


def test_means_of_runs_are_means():
    figure = show.draw_runs({"a": ((100, 100, 190), (200, 200, 500))})
    assert texts(figure) == ["mean 130", "mean 300"]
