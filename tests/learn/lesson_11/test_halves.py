"""The step that the reader's part is built on: until it is written, the package's."""

import pytest
import torch
from helpers import make_engine

from labkit.engine.step.lanes import HalfStep
from labkit.ladder import HIDDEN_LATENCY
from labkit.learn.lesson_11.halves import ForgetsTheJoin, InHalves, SharesAWorkspace


def step_of(part):
    return make_engine(options=HIDDEN_LATENCY, parts={"latency": part}).decode_step.device_step


def test_a_batch_is_cut_into_neighbours_and_joined_again():
    step, rows = step_of(InHalves), torch.arange(5)
    parts = step.cut(rows)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    assert step.joined([part[:, None] for part in parts])[:, 0].tolist() == rows.tolist()


@pytest.mark.parametrize("part", [InHalves, ForgetsTheJoin])
def test_each_half_has_a_lane_and_the_weights_of_the_step(part):
    step = step_of(part)
    first, second = step.halves
    assert isinstance(first, HalfStep) and first.attention is not second.attention
    assert first.layers is second.layers is step.layers


def test_who_shares_a_workspace_has_one_lane_for_both():
    first, second = step_of(SharesAWorkspace).halves
    assert first.attention is second.attention and first.kernels is second.kernels
