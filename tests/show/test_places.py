"""Which program touches which number."""

import pytest
from figures import shown_texts
from matplotlib.colors import same_color

from labkit import show
from labkit.learn.before_03.record import Access
from labkit.show.style import BLUE, ORANGE, PALE, RED

TWO = [
    Access("load", (0,), "x", (0, 1)),
    Access("store", (0,), "out", (0, 1)),
    Access("load", (1,), "x", (2, 3)),
    Access("store", (1,), "out", (1, 2, 3)),
]


def cells(figure, filled=True):
    """Corner, size and colour of each filled part of a cell, or the corners of the edges."""
    patches = [patch for patch in figure.axes[0].patches if patch.get_fill() == filled]
    return [
        (patch.get_x(), round(patch.get_y(), 2), patch.get_height(), patch.get_facecolor())
        for patch in patches
    ]


def test_a_cell_has_the_colours_of_the_programs_that_touch_it():
    figure = show.draw_places(TWO, {"x": (1, 3), "out": (1, 4)})
    assert shown_texts(figure) == ["x: loaded", "0", "1", "2", "3", "out: stored", "0", "1", "2", "3"]
    shades = [[(x, same_color(c[:3], BLUE), same_color(c[:3], ORANGE)) for x, _, _, c in cells(figure)]]
    assert shades[0].count((1, True, False)) == 2 and shades[0].count((1, False, True)) == 1
    assert [height for x, _, height, c in cells(figure) if x == 1 and same_color(c[:3], ORANGE)] == [0.5]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["program 0", "program 1"]


def test_a_number_beyond_the_end_has_a_red_edge():
    figure = show.draw_places(TWO, {"x": (1, 3), "out": (1, 4)})
    red = [
        p.get_x() for p in figure.axes[0].patches if not p.get_fill() and same_color(p.get_edgecolor(), RED)
    ]
    assert red == [3]  # x has 3 numbers
    before = show.draw_places([Access("store", (0,), "x", (-1,))], {"x": (1, 2)})
    assert shown_texts(before) == ["x: stored", "-1", "0", "1"]
    assert before.axes[0].get_xlim()[0] < -1


def test_a_matrix_has_its_rows_below_each_other():
    figure = show.draw_places([Access("load", (0,), "x", (0, 4, 9))], {"x": (2, 4)})
    assert shown_texts(figure) == ["x: loaded", *map(str, [*range(8), 9])]
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert places["4"][0] == places["0"][0] and places["4"][1] == pytest.approx(places["0"][1] - 1)
    assert places["9"] == (1.5, pytest.approx(places["0"][1] - 2))  # beyond the last row
    assert sum(same_color(c, PALE) for *_, c in cells(figure)) == 9


def test_a_tensor_that_is_left_alone_says_so_and_long_rows_are_refused():
    assert shown_texts(show.draw_places([], {"out": (1, 1)})) == ["out: left alone", "0"]
    with pytest.raises(ValueError, match="41 numbers are too many for a row; the most is 40"):
        show.draw_places([], {"x": (1, 41)})
