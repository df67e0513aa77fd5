"""Records of several machines: a line each, named."""

import pytest
from figures import tick_labels, title

from labkit import show
from labkit.results import host_time_lines, ladder_lines
from labkit.show.style import SERIES

LINES = {"H100": {"00": 100.0, "10": 9000.0}, "mine": {"00": 5.0, "02": 7.0, "10": 8.0}}


def test_each_record_is_a_line_over_its_rungs_and_the_last_is_thick():
    figure = show.draw_machines(LINES, "tokens per second", "All of them")
    (axes,) = figure.axes
    assert tick_labels(axes.xaxis) == ["00", "02", "10"] and axes.get_yscale() == "log"
    h100, mine = axes.lines
    assert (list(h100.get_xdata()), list(h100.get_ydata())) == ([0, 2], [100.0, 9000.0])
    assert (list(mine.get_xdata()), list(mine.get_ydata())) == ([0, 1, 2], [5.0, 7.0, 8.0])
    assert mine.get_linewidth() > h100.get_linewidth()
    assert (axes.get_ylabel(), title(figure)) == ("tokens per second", "All of them")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["H100", "mine"]


def test_more_records_than_colours_are_told_apart_by_their_markers():
    figure = show.draw_machines({str(i): {"00": 1.0 + i} for i in range(len(SERIES) + 2)}, "", "Machines")
    assert len({(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}) == len(SERIES) + 2


def test_no_record_is_refused():
    with pytest.raises(ValueError, match="there is no record to draw"):
        show.draw_machines({}, "")


@pytest.mark.parametrize("lines", [ladder_lines, host_time_lines])
def test_every_record_that_is_here_is_drawn_and_its_name_is_within_the_figure(lines):
    figure = show.draw_machines(lines(), "", "Machines")
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(lines())
    assert legend.get_window_extent().y0 >= 0 and legend.get_window_extent().x1 <= figure.bbox.x1
    assert figure.axes[0].bbox.height > 150
