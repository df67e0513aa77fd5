"""Kernels on one clock, a row per stream."""

import pytest
from figures import titles
from matplotlib.colors import same_color

from labkit import show
from labkit.show import Span
from labkit.show.lanes import kernels_of
from labkit.show.style import BLUE, ORANGE, PALE

ONE = [
    Span("main", "attention", "waits", 0.0, 4.0),
    Span("main", "attention", "moves bytes", 4.0, 20.0),
    Span("main", "attention", "waits", 20.0, 25.0),
]
TWO = [*ONE, Span("side", "linear_residual", "moves bytes", 0.0, 10.0)]


def test_each_span_is_a_box_in_its_streams_row_on_the_pale_ground():
    (axes,) = show.draw_lanes({"two": TWO}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["main", "side"]
    boxes = [
        (b.get_x(), b.get_width(), b.get_y() + b.get_height() / 2, b.get_facecolor()) for b in axes.patches
    ]
    assert [box[:3] for box in boxes] == [
        (0, 25, 0),
        (0, 25, 1),
        (0, 4, 0),
        (4, 16, 0),
        (20, 5, 0),
        (0, 10, 1),
    ]
    colours = [PALE, PALE, ORANGE, BLUE, ORANGE, BLUE]
    assert all(same_color(box[3], colour) for box, colour in zip(boxes, colours, strict=True))


def test_a_wait_and_the_bytes_behind_it_are_one_kernel_and_have_one_name():
    assert kernels_of(TWO) == [
        ("side", "linear_residual", 0.0, 10.0),
        ("main", "attention", 0.0, 20.0),
        ("main", "attention", 20.0, 25.0),
    ]
    (axes,) = show.draw_lanes({"two": TWO}).axes
    assert sorted(text.get_text() for text in axes.texts) == ["attention", "attention", "linear+add"]


def test_the_clock_ends_where_it_is_told_and_a_note_stands_behind_the_name():
    fig = show.draw_lanes({"one": ONE, "two": TWO}, notes={"two": "faster"}, end=15)
    assert titles(fig) == ["one", "two: faster"]
    for axes in fig.axes:
        assert axes.get_xlim() == (0, 15)
        assert max(box.get_x() + box.get_width() for box in axes.patches) == 15


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        show.draw_lanes({"nothing": []})
