"""Lesson 02's two batches: which paths their tokens take."""

import pytest

from labkit import LADDER, watch
from labkit.learn.lesson_02.toy import six_different, six_equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_engine", "paths"),
    [
        (six_different, {"in_place": 86, "boundary": 27, "copy_on_write": 1, "first": 0}),
        (six_equal, {"in_place": 84, "boundary": 30, "copy_on_write": 0, "first": 0}),
    ],
)
def test_the_paths_of_twenty_steps(make_engine, paths, tiny):
    steps = watch.record_paths(make_engine(tiny, LADDER["02"].options, "cpu"), 20)
    assert {path: sum(step[path] for step in steps) for path in paths} == paths
