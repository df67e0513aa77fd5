"""Buckets, their padding, and captures by their reasons."""

from labkit import show
from labkit.show import draw_buckets


def test_captures_are_counted_by_their_reasons():
    figure = show.draw_captures((1, 2, 2, 2), (1, 1, 2, 2), ("size", "size", "table", ""))
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    new_size, grown = "this batch size is new (2)", "its graph was dropped: the table grew (1)"
    assert legend == [new_size, grown, "the table grows"]


def test_rows_of_nobody_are_the_space_between_the_lines():
    fig = draw_buckets({"some": [2, 4], "one": [4]}, 4)
    rows, share = fig.axes
    steps = {line.get_label(): list(line.get_ydata()) for line in rows.lines}
    assert steps == {"some: 2 sizes": [2, 2, 4, 4], "one: 1 sizes": [4] * 4, "requests": [1, 2, 3, 4]}
    assert [list(line.get_ydata()) for line in share.lines] == [[50, 0, 25, 0], [75, 50, 25, 0]]
