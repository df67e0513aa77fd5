"""Lesson 04's writes: where requests write, which way, and the package's identity-pos write by itself."""

import pytest
import torch
from helpers import small_model

from labkit.kernels import kv_append_plain
from labkit.ladder import LADDER
from labkit.learn.lesson_04.writes import watch_positions, write_identity_pos
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
    equal = [len(set(step.slots.values())) == 1 for step in run.steps]
    assert equal == [True] * 5 + [False] * 19 and run.num_equal == 5


def test_every_write_of_the_engine_has_a_colour():
    assert set(WRITES) == set(WRITE_COLOURS)


def test_each_row_goes_to_its_slot_and_nothing_else_is_touched():
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(2, 5, 2, 4, 6, generator=generator)
    key, value = torch.randn(2, 3, 2, 6, generator=generator)
    rows, blocks, slots = torch.tensor([[0, 1, 2], [3, 0, 2], [0, 3, 1]], dtype=torch.int32)
    expected = pool.clone()
    kv_append_plain(*expected, key, value, rows, blocks, slots)
    assert not torch.equal(pool, expected)
    write_identity_pos(*pool, key, value, blocks, slots)
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("name", ["blocks", "slots"])
def test_a_list_is_no_index_tensor(name):
    indices = {"blocks": torch.tensor([1]), "slots": torch.tensor([2])} | {name: [1]}
    with pytest.raises(TypeError, match=rf"{name} is a list, expected an index tensor: self\.index"):
        write_identity_pos(*torch.zeros(2, 5, 2, 4, 6), *torch.zeros(2, 1, 2, 6), **indices)
