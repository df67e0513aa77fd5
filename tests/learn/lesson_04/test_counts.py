"""Lesson 04's runs: where requests write, and which way they are written."""

import torch
from helpers import small_model

from labkit.ladder import LADDER
from labkit.learn.lesson_04.counts import watch_positions
from labkit.show.grids import WRITE_COLOURS
from labkit.watch.counters import WRITES

CPU = torch.device("cpu")
RUNG = LADDER["04"].options


def watched(lengths, **settings):
    return watch_positions(small_model(), RUNG, CPU, lengths, **settings)


def test_a_distance_between_two_requests_never_changes():
    run = watched((3, 4, 6))
    assert len(run.steps) == 24 and run.num_equal == 0
    for step in run.steps:
        first, second, third = step.slots.values()
        assert ((second - first) % 8, (third - first) % 8) == (1, 3)
    assert [step.slots[0] for step in run.steps] == [t % 8 for t in range(3, 27)]


def test_a_late_request_ends_full_batch():
    run = watched((3, 3), late_lengths=(3,))
    assert [step.path for step in run.steps] == ["full_batch"] * 5 + ["identity_pos"] * 19
    assert [len(step.slots) for step in run.steps] == [2] * 5 + [3] * 19
    assert [step.are_equal for step in run.steps] == [True] * 5 + [False] * 19 and run.num_equal == 5


def test_every_write_of_the_engine_has_a_colour():
    assert set(WRITES) == set(WRITE_COLOURS)
