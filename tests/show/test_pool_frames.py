"""A small pool, moment by moment: a number in each slot, and a frame about what is in the wrong block."""

import pytest
from matplotlib.colors import same_color

from labkit import show
from labkit.show.pool_frames import COLOURS
from labkit.show.style import RED

BEFORE = show.PoolFrame("before", ((1, 2, 0), (0, 0, 0)), ("AB", ""))
RIGHT = show.PoolFrame("at the end", ((1, 2, 20), (1, 2, 10)), ("B", "A"))
WRONG = show.PoolFrame("at the end", ((1, 2, 20), (1, 2, 20)), ("B", "A"))
OWNERS = {10: "A", 20: "B"}


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def framed(axes):
    """Where a slot is framed in red."""
    edges = [patch for patch in axes.patches if not patch.get_fill()]
    return [patch.get_xy() for patch in edges if same_color(patch.get_edgecolor(), RED)]


def test_a_panel_is_a_moment_and_tells_who_holds_each_block_and_what_is_in_it():
    figure = show.draw_pool_frames({"Right": [BEFORE, RIGHT], "Wrong": [BEFORE, WRONG]}, OWNERS)
    before, right, _, wrong = figure.axes
    assert texts_of(before) == ["block 0: A and B", "1", "2", "block 1: free", "Right"]
    assert texts_of(right) == ["block 0: B", "1", "2", "20", "block 1: A", "1", "2", "10"]
    assert [axes.get_title(loc="left") for axes in (before, right)] == ["before", "at the end"]
    assert framed(before) == framed(right) == []
    assert framed(wrong) == [(2, -1.5)]


def test_a_token_has_the_colour_of_whom_it_belongs_to():
    axes, *_ = show.draw_pool_frames({"": [RIGHT]}, OWNERS).axes
    faces = [patch.get_facecolor() for patch in axes.patches if patch.get_fill()]
    assert [same_color(faces[2][:3], COLOURS["B"]), same_color(faces[5][:3], COLOURS["A"])] == [True, True]


def test_a_row_with_fewer_moments_leaves_panels_empty():
    figure = show.draw_pool_frames({"Long": [BEFORE, RIGHT], "Short": [BEFORE]}, OWNERS)
    assert not figure.axes[3].axison and texts_of(figure.axes[3]) == []


def test_a_pool_of_more_blocks_gets_a_taller_row():
    def tall(frame, owners=OWNERS):
        return show.draw_pool_frames({"": [frame]}, owners).get_figheight()

    four = show.PoolFrame("four", RIGHT.slots * 2, RIGHT.holders * 2)
    assert tall(RIGHT) == pytest.approx(2.0) and tall(four) == pytest.approx(3.0)
