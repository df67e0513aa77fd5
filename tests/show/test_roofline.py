"""The roofline and the limit: what part of them is reached."""

import pytest
from figures import shown_texts

from labkit import show


def test_roofline_says_how_much_of_its_roof_a_point_reaches():
    """The roof of one is the memory's slope, and of the other the flat peak; they meet at 25 FLOP a byte."""
    points = [
        show.RooflinePoint("decode", flops=10.0, bytes=10.0, seconds=1.0),
        show.RooflinePoint("prefill", flops=1000.0, bytes=10.0, seconds=2.0),
    ]
    axes = show.draw_roofline(points, bandwidth=40.0, peak=1000.0).axes[0]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["decode: 25 % of its roof", "prefill: 50 % of its roof"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(1, 10 / 1e9), (100, 500 / 1e9)]
    (ridge,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(ridge.get_xdata()) == [25, 25]


def test_limit_figure_says_the_fraction():
    figure = show.draw_limit([8, 16], [0.1, 0.1], [0.4, 0.2], "a device")
    assert shown_texts(figure) == [
        "  20 tokens/s: 25.0 % of the limit",
        "  80 tokens/s: 50.0 % of the limit",
    ]
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([80, 160, 20, 80])
