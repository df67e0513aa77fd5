"""Blocks that several texts share are one box."""

from figures import tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import BLUE, GREY, ORANGE


def test_a_full_block_of_texts_that_begin_alike_is_one_box_over_them():
    texts = {"A": list("abcdefx"), "B": list("abcdy"), "C": list("zb")}
    figure = show.draw_shared_blocks(texts, block_size=2)
    (axes,) = figure.axes
    boxes = [
        (box.get_x(), round(box.get_y() - 0.08), round(box.get_height() + 0.16))
        for box in axes.patches
        if not box.get_fill()
    ]
    assert boxes == [(0, 0, 2), (0, 2, 1), (2, 0, 2), (4, 0, 1)]
    filled = [box for box in axes.patches if box.get_fill()]
    shades = [BLUE, ORANGE, BLUE, ORANGE, GREY, GREY]
    assert all(
        same_color((*box.get_facecolor()[:3], 1), shade) for box, shade in zip(filled, shades, strict=True)
    )
    assert "".join(text.get_text() for text in axes.texts) == "abzbcdefxy"
    assert tick_labels(axes.yaxis) == ["A", "B", "C"]
    assert title(figure).startswith("Blocks of 2: a box over several texts")


def test_equal_tokens_behind_different_beginnings_are_two_boxes():
    figure = show.draw_shared_blocks({"A": list("abcd"), "B": list("xbcd")}, block_size=2)
    assert sum(not box.get_fill() for box in figure.axes[0].patches) == 4
