"""A step that is played: the numbers of one that is not cut, and launches that tell their stream."""

import pytest

from labkit import lab
from labkit.engine import InferenceEngine
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_11.streams import steps_to_play


def build(model, **settings):
    return lab.start("11").build(model=model, **settings)


def test_an_engine_without_lanes_cannot_be_played():
    def rung_10(model, **settings):
        return InferenceEngine(model, LADDER["10"].options, device="cpu", **settings)

    with pytest.raises(BrokenContract, match="FusedDeviceStep has no lanes"), steps_to_play(rung_10):
        pass
