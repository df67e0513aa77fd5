"""The figure of three engines: a bar each, dots for runs, and what may be said of them."""

import pytest
from figures import shown_texts, tick_labels
from matplotlib.colors import same_color

from labkit.learn.measured import BELOW, PACKAGE, YOURS, Measured
from labkit.show.measured import draw_measured
from labkit.show.style import BLUE, GREY

MADE_UP = Measured(64, {BELOW: (4e-3, 4.1e-3) * 4, YOURS: (4.1e-3, 4e-3) * 4, PACKAGE: (2e-3, 2.05e-3) * 4})


def test_each_engine_is_a_bar_in_the_colour_of_its_verdict():
    compared = {name: MADE_UP.compared(name) for name in (YOURS, PACKAGE)}
    figure = draw_measured(MADE_UP.seconds, compared, MADE_UP.batch_size)
    (axes,) = figure.axes
    assert tick_labels(axes.yaxis) == [BELOW, YOURS, PACKAGE]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([4050, 4050, 2025])
    shades = [bar.get_facecolor()[:3] for bar in axes.patches]
    assert [same_color(shade, GREY) for shade in shades] == [True, True, False]
    assert same_color(shades[2], BLUE)
    assert [len(line.get_xdata()) for line in axes.lines] == [8, 8, 8]
    texts = shown_texts(figure)
    assert "cannot tell" in texts and "faster" in texts
    assert "of 64 requests" in axes.get_xlabel() and "microseconds" in axes.get_xlabel()


def test_the_axis_names_another_time_than_the_hosts():
    figure = draw_measured(MADE_UP.seconds, {}, MADE_UP.batch_size, "time, with a played GPU,")
    (axes,) = figure.axes
    assert axes.get_xlabel().startswith("time, with a played GPU, per decode step of 64 requests")
