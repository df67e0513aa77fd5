"""Lesson 11: simulated streams: who waits for whom, and a step that has none."""

import pytest
import torch

from labkit.engine import InferenceEngine
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_11.streams import SimulatedStreams, steps_to_play
from labkit.watch.operators import storage

A, B = torch.zeros(2), torch.ones(2)


def streams(**names):
    return SimulatedStreams({storage(tensor): name for name, tensor in names.items()})


def test_a_stream_waits_for_what_was_launched_before_and_for_nothing_later():
    simulated = streams()
    main, side = simulated.main, simulated.side
    simulated.launch("one", (), (A,))
    side.wait_stream(main)
    simulated.launch("two", (), (B,))
    with simulated.launching_in(side):
        assert simulated.main is side
        simulated.launch("three", (A,), ())
    assert simulated.main is main
    one, two, three = simulated.launches
    assert three.is_behind(one) and not three.is_behind(two) and two.is_behind(one)
    assert [(launch.stream, launch.number) for launch in simulated.launches] == [
        ("main", 1),
        ("main", 2),
        ("side", 1),
    ]


def test_what_is_still_read_is_not_overwritten():
    simulated = streams(lengths=A)
    simulated.launch("embed", (A,), (B,))
    with (
        simulated.launching_in(simulated.side),
        pytest.raises(BrokenContract, match="advance in the side stream writes lengths while embed in the m"),
    ):
        simulated.launch("advance", (), (A,))


def test_an_engine_without_lanes_cannot_be_played():
    def rung_10(model, **settings):
        return InferenceEngine(model, LADDER["10"].options, device="cpu", **settings)

    with pytest.raises(BrokenContract, match="FusedDeviceStep has no lanes"), steps_to_play(rung_10):
        pass
