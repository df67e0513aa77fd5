"""Buckets, their padding, and captures by their reasons."""

from labkit import show


def test_captures_are_counted_by_their_reasons():
    figure = show.draw_captures((1, 2, 2, 2), (1, 1, 2, 2), ("size", "size", "table", ""))
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    new_size, grown = "this batch size is new (2)", "its graph was dropped: the table grew (1)"
    assert legend == [new_size, grown, "the table grows"]
