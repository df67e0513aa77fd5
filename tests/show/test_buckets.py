"""Buckets, their padding, and captures by their reasons."""

from figures import lines, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show import draw_buckets
from labkit.show.style import ORANGE, RED


def test_captures_are_counted_by_their_reasons():
    figure = show.draw_captures((1, 2, 2, 2), (1, 1, 2, 2), ("size", "size", "table", ""))
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    new_size, grown = "this batch size is new (2)", "its graph was dropped: the table grew (1)"
    assert legend == [new_size, grown, "the table grows"]


def test_rows_of_nobody_are_the_space_between_the_lines():
    fig = draw_buckets({"some": [2, 4], "one": [4]}, 4)
    rows, share = fig.axes
    steps = {line.get_label(): list(line.get_ydata()) for line in rows.lines}
    assert steps == {"some: 4 graphs": [2, 2, 4, 4], "one: 2 graphs": [4] * 4, "requests": [1, 2, 3, 4]}
    assert [list(line.get_ydata()) for line in share.lines] == [[50, 0, 25, 0], [75, 50, 25, 0]]


def test_buckets_are_the_ticks_of_an_axis_that_begins_at_one_request():
    rows, share = draw_buckets({"doubling": [1, 2, 4, 8, 16]}, 16).axes
    assert (rows.get_ylabel(), share.get_ylabel()) == ("rows of the step", "padding (%)")
    assert share.get_xlabel() == "B: requests decoded together"
    assert list(share.get_xticks()) == [1, 8, 16] and share.get_xlim() == (0.5, 16.5)
    assert [text.get_text() for text in rows.get_legend().get_texts()] == [
        "doubling: 10 graphs",
        "padding rows",
        "requests",
    ]


def test_a_capture_is_a_dot_at_its_step_in_the_colour_of_its_reason():
    figure = show.draw_captures((1, 2, 2, 2), (1, 1, 2, 2), ("size", "size", "table", ""))
    (axes,) = figure.axes
    size, table = lines(figure, "o")
    assert (list(size.get_xdata()), list(size.get_ydata())) == ([1, 2], [1, 2])
    assert (list(table.get_xdata()), list(table.get_ydata())) == ([3], [2])
    assert same_color(size.get_color(), ORANGE) and same_color(table.get_color(), RED)
    (grown,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(grown.get_xdata()) == [2.5, 2.5]
    assert title(figure) == "3 of 4 steps wait for a capture"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("decode step", "requests in the batch")
