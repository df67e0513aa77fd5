"""Lesson 11: streams that are played: who waits for whom, and a step that has none."""

import pytest
import torch

from labkit import lab
from labkit.engine import InferenceEngine
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_11.streams import PlainKernel, PlayedStreams, steps_to_play
from labkit.watch.operators import storage

A, B = torch.zeros(2), torch.ones(2)


def streams(*apart, **names):
    return PlayedStreams({storage(tensor): name for name, tensor in names.items()}, apart)


def test_a_stream_waits_for_what_was_launched_before_and_for_nothing_later():
    played = streams()
    main, side = played.main, played.side
    played.launch("one", (), (A,))
    side.wait_stream(main)
    played.launch("two", (), (B,))
    with played.launching_in(side):
        assert played.main is side
        played.launch("three", (A,), ())
    assert played.main is main
    one, two, three = played.launches
    assert three.is_behind(one) and not three.is_behind(two) and two.is_behind(one)
    assert [(launch.stream, launch.number) for launch in played.launches] == [
        ("main", 1),
        ("main", 2),
        ("side", 1),
    ]


def test_what_is_still_read_is_not_overwritten():
    played = streams(lengths=A)
    played.launch("embed", (A,), (B,))
    with (
        played.launching_in(played.side),
        pytest.raises(BrokenContract, match="advance in the side stream writes lengths while embed in the m"),
    ):
        played.launch("advance", (), (A,))


def test_rows_that_are_apart_may_be_written_at_once():
    played = streams(A)
    played.launch("attention", (A,), (A,))
    with played.launching_in(played.side):
        played.launch("attention", (A,), (A,))
    assert len(played.launches) == 2


def test_operators_are_launches_views_are_none_and_a_kernel_writes_its_workspace():
    workspace = torch.zeros(1)
    played = streams()
    kernel = played.as_kernel("double", PlainKernel(lambda x, gelu=False: 2 * x, workspace))
    with played:
        x = torch.ones(4)[:2].view(2, 1)
        made = kernel(x, gelu=True)
        made.add_(1)
    assert made.tolist() == [[3], [3]]
    assert [(launch.kernel, launch.rows, launch.gelu) for launch in played.launches] == [
        ("ones", 4, False),
        ("double", 2, True),
        ("add_", 2, False),
    ]
    with played, played.launching_in(played.side), pytest.raises(BrokenContract, match="at once, each has"):
        played.names[storage(workspace)] = "the workspace"
        kernel(B)


def build(model, **settings):
    return lab.start("11").build(model=model, **settings)


def test_an_engine_without_lanes_cannot_be_played():
    def rung_10(model, **settings):
        return InferenceEngine(model, LADDER["10"].options, device="cpu", **settings)

    with pytest.raises(BrokenContract, match="FusedDeviceStep has no lanes"), steps_to_play(rung_10):
        pass
