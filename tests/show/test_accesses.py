"""A kernel's accesses as a picture: whose each number is, and what went astray."""

import pytest
from matplotlib.colors import to_rgba

from labkit import show
from labkit.show.style import BLUE, GREY, ORANGE, RED
from labkit.watch.accesses import READ, WRITE, Access, KernelRun, Layout

DIMS = {"new_ptr": ("request", "d"), "cache_ptr": ("block", "slot", "d")}


def run_of(*accesses, grid=(2,), shape=(2, 2, 3), strides=(6, 3, 1)):
    layouts = {
        "block_ptr": Layout((2,), (1,)),
        "new_ptr": Layout((2, 3), (9, 1)),
        "cache_ptr": Layout(shape, strides),
    }
    return KernelRun("append", grid, layouts, [Access(*access) for access in accesses])


RIGHT = (
    ((0,), "new_ptr", READ, (0, 1, 2)),
    ((0,), "cache_ptr", WRITE, (9, 10, 11)),
    ((1,), "new_ptr", READ, (9, 10, 11)),
    ((1,), "cache_ptr", WRITE, (0, 1, 2)),
)


def cells(axes):
    """The colour of each part of a cell, by where it begins."""
    return {(p.get_x(), p.get_y()): p.get_facecolor() for p in axes.patches if p.get_fill()}


def test_a_number_has_the_colour_of_its_program_pale_if_it_is_read():
    new, cache = show.draw_accesses(run_of(*RIGHT), DIMS).axes
    assert cells(new) == {(x, y): to_rgba((BLUE, ORANGE)[y], 0.35) for x in range(3) for y in range(2)}
    full = {(x + 3, 1): to_rgba(BLUE) for x in range(3)} | {(x, 0): to_rgba(ORANGE) for x in range(3)}
    assert cells(cache) == full
    assert new.get_title(loc="left") == "append: 2 programs"
    labels = [text.get_text() for text in new.get_legend().get_texts()]
    assert labels == ["program (0,)", "(1,)", "read", "written"]
    assert (cache.get_ylabel(), cache.get_xlabel()) == ("cache_ptr\nblock", "d: 0 to 2")
    assert [tick.get_text() for tick in cache.get_xticklabels()] == ["slot 0", "slot 1"]


def test_one_program_can_be_picked_and_the_others_are_grey():
    _, cache = show.draw_accesses(run_of(*RIGHT), DIMS, programs=[(1,)], title="one").axes
    assert set(cells(cache).values()) == {to_rgba(GREY), to_rgba(BLUE)}
    assert cells(cache)[0, 0] == to_rgba(BLUE)


def test_a_number_read_by_two_has_two_slices_and_one_written_by_two_is_red():
    both = [
        ((p,), name, kind, (0,)) for p in (0, 1) for name, kind in (("block_ptr", READ), ("cache_ptr", WRITE))
    ]
    block, cache = show.draw_accesses(run_of(*both)).axes
    assert cells(block) == {(0, 0): to_rgba(BLUE, 0.35), (0, 0.5): to_rgba(ORANGE, 0.35)}
    assert cells(cache) == {(0, 0): to_rgba(RED)} and [t.get_text() for t in cache.texts] == ["×"]


def test_what_meets_no_element_is_told_in_red():
    astray = [((p,), "new_ptr", READ, (3 + p, 4 + p)) for p in range(4)]
    (axes,) = show.draw_accesses(run_of(*astray, grid=(4,)), {"new_ptr": ("request", "d")}).axes
    label = axes.xaxis.label
    assert label.get_color() == RED and label.get_text().splitlines() == [
        "d",
        "program (0,) reads outside of it: 3 to 4 from its first number",
        "program (1,) reads outside of it: 4 to 5 from its first number",
        "and 2 more like it",
    ]
    assert cells(axes) == {}


def test_many_programs_have_no_legend_of_their_own_and_none_are_drawn_empty():
    many = show.draw_accesses(run_of(*RIGHT, grid=(9,)), DIMS).axes[0]
    assert [text.get_text() for text in many.get_legend().get_texts()] == ["read", "written"]
    empty = show.draw_accesses(run_of())
    assert len(empty.axes) == 3 and not any(cells(axes) for axes in empty.axes)


def test_a_tensor_too_large_to_draw_is_refused():
    large = run_of(((0,), "cache_ptr", WRITE, (0,)), shape=(2, 65), strides=(65, 1))
    with pytest.raises(
        ValueError, match=r"cache_ptr, \[2, 65\], is too large to draw: at most 48 rows of 64"
    ):
        show.draw_accesses(large)
