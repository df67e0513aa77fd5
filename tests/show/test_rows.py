"""Rows of block tables, why they are made anew, and the times of steps."""

import pandas as pd
from figures import tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show.rows import REASONS


def test_the_figure_of_step_times_marks_the_steps_after_boundaries():
    axes = show.draw_step_times({"00": [1.0] * 10, "01": [2.0] * 9}, mark_every=4).axes[0]
    first, second, marks = axes.lines
    assert (len(first.get_xdata()), len(second.get_xdata())) == (10, 9)
    assert list(marks.get_xdata()) == [5, 9]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["00", "01"]


def test_a_row_of_the_figure_is_a_request_and_a_cell_says_how_many_tokens_it_held():
    columns = ["step", "request", "layer", "tokens", "blocks", "reason"]
    lines = [
        (1, 3, 0, 4, 1, "first"),
        (1, 9, 0, 7, 2, "first"),
        (3, 3, 0, 5, 2, "boundary"),
        (3, 9, 0, 8, 2, "kept"),
        (3, 9, 1, 8, 2, "stale"),  # of another layer
    ]
    figure = show.draw_rows(pd.DataFrame(lines, columns=columns))
    (axes,) = figure.axes
    assert [(text.get_position(), text.get_text()) for text in axes.texts] == [
        ((1, 0), "4"),
        ((1, 1), "7"),
        ((3, 0), "5"),
        ((3, 1), "8"),
    ]
    assert tick_labels(axes.yaxis) == ["request 3", "request 9"]
    assert title(figure) == "Rows of layer 0's block table: kept, or made anew"
    assert axes.get_xlabel() == "step (in a cell: tokens in the cache when the step began)"
    for cell, reason in zip(axes.patches, ("first", "first", "boundary", "kept"), strict=True):
        assert same_color(cell.get_facecolor()[:3], REASONS[reason][0])
    seen = [text.get_text() for text in figure.legends[0].get_texts()]
    assert seen == [REASONS[reason][1] for reason in ("kept", "first", "boundary")]
