"""Lesson 04's writes: where requests write, which way, and the package's identity-pos write by itself."""

import pytest
import torch
from helpers import small_model

from labkit.ladder import LADDER
from labkit.learn.lesson_04.writes import watch_positions, write_identity_pos
from labkit.show.grids import WRITE_COLOURS
from labkit.watch.counters import WRITES


def test_a_late_request_ends_full_batch():
    run = watch_positions(small_model(), LADDER["04"].options, torch.device("cpu"), (3, 3), late_lengths=(3,))
    assert [step.path for step in run.steps] == ["full_batch"] * 5 + ["identity_pos"] * 19
    assert [len(step.slots) for step in run.steps] == [2] * 5 + [3] * 19
    assert [step.slots[0] for step in run.steps] == [t % 8 for t in range(3, 27)]
    equal = [len(set(step.slots.values())) == 1 for step in run.steps]
    assert equal == [True] * 5 + [False] * 19 and run.num_equal == 5


def test_every_write_of_the_engine_has_a_colour():
    assert set(WRITES) == set(WRITE_COLOURS)


@pytest.mark.parametrize("name", ["blocks", "slots"])
def test_a_list_is_no_index_tensor(name):
    indices = {"blocks": torch.tensor([1]), "slots": torch.tensor([2])} | {name: [1]}
    with pytest.raises(TypeError, match=rf"{name} is a list, expected an index tensor: self\.index"):
        write_identity_pos(*torch.zeros(2, 5, 2, 4, 6), *torch.zeros(2, 1, 2, 6), **indices)
