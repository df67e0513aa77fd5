"""Slots against steps, and the write that was taken."""

import numpy as np
from figures import titles
from matplotlib.colors import same_color

from labkit import show
from labkit.show.positions import WRITE_COLOURS
from labkit.watch import Positions
from labkit.watch.positions import PositionsStep


def run_of(*steps):
    return Positions(4, tuple(PositionsStep(dict(enumerate(slots)), path) for slots, path in steps))


TWO_WRITES = run_of(
    *[((slot, slot), "full_batch") for slot in (1, 2, 3)], ((0, 3), "identity_pos"), ((1, 0), "identity_pos")
)


def test_positions_have_a_panel_a_run_and_its_count_in_the_title():
    figure = show.draw_positions({"one": TWO_WRITES, "two": run_of(((0, 2), "generic"))})
    assert titles(figure) == ["one: equal slots in 3 of 5 steps", "two: equal slots in 0 of 1 steps"]
    assert figure.axes[-1].get_xlabel() == "decode step (strip: how the batch is written)"


def test_a_line_ends_with_its_block():
    (axes,) = show.draw_positions({"one": TWO_WRITES}).axes
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines]
    assert drawn == [
        ([1, 2, 3], [1, 2, 3]),  # request 0, then its next block
        ([4, 5], [0, 1]),
        ([1, 2, 3, 4], [1, 2, 3, 3]),
        ([5], [0]),
    ]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["request 0", "request 1"]


def test_lines_on_each_other_are_all_seen():
    (axes,) = show.draw_positions({"one": run_of(*[((slot,) * 3, "full_batch") for slot in range(4)])}).axes
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3


def test_a_request_that_is_not_there_yet_has_no_line():
    late = Positions(4, (PositionsStep({0: 1}, "full_batch"), PositionsStep({0: 2, 1: 0}, "identity_pos")))
    (axes,) = show.draw_positions({"late": late}).axes
    assert np.isnan(axes.lines[1].get_ydata()[0]) and axes.lines[1].get_ydata()[1] == 0


def test_the_strip_names_each_stretch_that_has_room():
    (axes,) = show.draw_positions({"one": TWO_WRITES}).axes
    assert [text.get_text() for text in axes.texts] == ["full_batch"]  # two steps are too few for a name
    strips = [(c.get_facecolor()[0][:3], c.get_paths()[0].get_extents()) for c in axes.collections]
    assert same_color(strips[0][0], WRITE_COLOURS["full_batch"])
    assert same_color(strips[1][0], WRITE_COLOURS["identity_pos"])
    assert [(box.x0, box.x1) for _, box in strips] == [(0.5, 3.5), (3.5, 5.5)]
    assert all(box.y1 < 0 for _, box in strips)  # below the slots
    assert all(0 <= tick < 4 for tick in axes.get_yticks())
