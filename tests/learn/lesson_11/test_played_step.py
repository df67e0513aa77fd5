"""A step that is played: the numbers of one that is not cut, and launches that tell their stream."""

import pytest
import torch

from labkit import lab
from labkit.engine import InferenceEngine
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_11.played_step import NUM_REQUESTS, steps_to_play

FIVE = ["norm_linear", "attention", "linear_residual", "norm_linear", "linear_residual"]


def called(launch):
    """A kernel's name in every version of PyTorch."""
    return launch.kernel.removeprefix("native_")


def build(model, **settings):
    return lab.start("11").build(model=model, **settings)


def test_a_batch_makes_what_one_that_is_not_cut_makes_and_no_slot_advances():
    with steps_to_play(build) as player:
        before = player.step.slots.context_lens.clone()
        for batch_size in (3, 4, 5, 8):
            played = player.play(batch_size)
            real = played.slot_mapping != played.padding_slot
            assert real.sum() == min(batch_size, NUM_REQUESTS)
            torch.testing.assert_close(played.made[real], played.expected[real], rtol=1e-3, atol=1e-2)
        assert torch.equal(player.step.slots.context_lens, before)


def test_launches_are_kernels_of_two_streams_and_the_join():
    with steps_to_play(build) as player:
        whole, halves = player.play(3).launches, player.play(5).launches
    assert [called(launch) for launch in whole] == ["embed", *FIVE, *FIVE, "layer_norm"]
    for stream, rows in (("main", 3), ("side", 2)):
        lane = [launch for launch in halves if launch.stream == stream]
        assert [launch.kernel for launch in lane][:11] == ["embed", *FIVE, *FIVE]
        assert {launch.rows for launch in lane[:11]} == {rows}
    assert [called(launch) for launch in halves[-2:]] == ["cat", "layer_norm"]


def test_an_engine_without_lanes_cannot_be_played():
    def rung_10(model, **settings):
        return InferenceEngine(model, LADDER["10"].options, device="cpu", **settings)

    with pytest.raises(BrokenContract, match="FusedDeviceStep has no lanes"), steps_to_play(rung_10):
        pass
