"""Where two requests' tokens are written, right and one step too late."""

import pytest
from helpers import make_engine
from prefilled_engines import THIS

from labkit.engine.step.slots import DeviceSlots
from labkit.learn.lesson_06.traps import OWNERS, LateRows, boundary_frames

FULL = ((1, 2, 3, 4), (11, 12, 13, 0), (0,) * 4, (0,) * 4)
RIGHT = ((1, 2, 3, 4), (11, 12, 13, 14), (5, 6, 0, 0), (15, 0, 0, 0))
LATE = ((15, 2, 3, 4), (11, 12, 13, 14), (0, 6, 0, 0), (0,) * 4)


@pytest.mark.parametrize(("part", "at_the_end"), [(DeviceSlots, RIGHT), (LateRows, LATE)])
def test_the_frames_show_what_the_device_wrote(part, at_the_end):
    engine = make_engine(options=THIS, prefix_cache=False, parts={"block_tables": part})
    first, second, third = boundary_frames(engine)
    assert first.slots == FULL and first.holders == ("A", "B", "", "")
    assert second.slots[2 if part is DeviceSlots else 0][0] == 5
    assert third.slots == at_the_end and third.holders == ("A", "B", "A", "B")
    assert (OWNERS[5], OWNERS[15]) == ("A", "B")
