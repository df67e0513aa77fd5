"""A request on one clock: a row per lane, and every stretch where it was."""

import pytest

from labkit import show
from labkit.show import Stretch


def test_stretches_lie_in_their_lanes_and_the_thinnest_can_be_seen():
    stretches = [Stretch("client", "sends", 0, 10), Stretch("engine", "a step", 20, 100)]
    stretches.append(Stretch("client", "a frame", 100, 100))
    (axes,) = show.draw_request(stretches).axes
    boxes = [
        (box.get_x(), box.get_width(), round(box.get_y() + box.get_height() / 2)) for box in axes.patches
    ]
    assert boxes[:2] == [(0, 100, 0), (0, 100, 1)]  # the rows
    assert boxes[2:] == [(0, 10, 0), (20, 80, 1), (100, pytest.approx(0.3), 0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["client", "engine"]
