"""Lesson 08: the walk through the step names its very lines."""

import inspect

from labkit import LADDER
from labkit.engine.step.device import DeviceStep
from labkit.learn.lesson_08.cost import WALK, walk_through


def test_each_line_of_the_walk_is_in_the_source():
    source = [line.strip() for line in inspect.getsource(DeviceStep).splitlines()]
    for line, why, who in WALK:
        assert line in source
        assert why.endswith(".") and who[:2] in LADDER
        assert walk_through().data.count(f"| `{line}` | {why} | {who} |") == 1
