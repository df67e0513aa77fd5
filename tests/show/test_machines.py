"""Records of several machines: a line each, named."""

import pytest
from figures import tick_labels, title

from labkit import show
from labkit.results import host_time_lines, ladder_lines
from labkit.show.style import SERIES

LINES = {
    "H100: B = 64 (old)": {"00": 100.0, "10": 9000.0},
    "mine: B = 8 (a)": {"00": 4.0},
    "H100: B = 8 (new)": {"10": 7000.0},
    "mine: B = 8 (b)": {"00": 5.0, "02": 7.0, "10": 8.0},
}


def test_each_record_is_a_line_over_its_rungs_in_its_machines_colour_and_the_last_is_thick():
    figure = show.draw_machines(LINES, "tokens per second", "All of them")
    (axes,) = figure.axes
    assert tick_labels(axes.xaxis) == ["00", "02", "10"] and axes.get_yscale() == "log"
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in drawn] == [
        ([0, 2], [100.0, 9000.0]),
        ([0], [4.0]),
        ([2], [7000.0]),
        ([0, 1, 2], [5.0, 7.0, 8.0]),
    ]
    old, mine, new, newest = drawn
    assert old.get_color() == new.get_color() != mine.get_color() == newest.get_color()
    assert newest.get_linewidth() > mine.get_linewidth() == new.get_linewidth()
    assert (axes.get_ylabel(), title(figure)) == ("tokens per second", "All of them")


def test_the_legend_names_each_machine_once_and_the_newest_record_in_full():
    figure = show.draw_machines(LINES, "tokens per second", "All of them")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "H100",
        "mine",
        "the newest: mine: B = 8 (b)",
    ]
    widths = {line.get_linewidth() for line in legend.get_lines()}
    assert legend.get_lines()[-1].get_linewidth() == max(widths) and len(widths) == 2


def test_more_machines_than_colours_are_told_apart_by_their_markers():
    figure = show.draw_machines({str(i): {"00": 1.0 + i} for i in range(len(SERIES) + 2)}, "", "Machines")
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    assert len({(line.get_color(), line.get_marker()) for line in drawn}) == len(SERIES) + 2


def test_no_record_is_refused():
    with pytest.raises(ValueError, match="there is no record to draw"):
        show.draw_machines({}, "")


@pytest.mark.parametrize("lines", [ladder_lines, host_time_lines])
def test_every_record_that_is_here_is_drawn_and_the_legend_is_within_the_figure(lines):
    figure = show.draw_machines(lines(), "", "Machines")
    figure.canvas.draw()
    assert len([line for line in figure.axes[0].lines if len(line.get_xdata())]) == len(lines())
    (legend,) = figure.legends
    assert legend.get_window_extent().y0 >= 0 and legend.get_window_extent().x1 <= figure.bbox.x1
    assert figure.axes[0].bbox.height > 150
