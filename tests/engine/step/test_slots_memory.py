"""Numbers that lie in one tensor, and are brought to their places in one go."""

import numpy as np
import pytest
import torch
from devices import CPU, CUDA

from labkit.engine.step.slots import ALIGNMENT, SlotMemory, packed_size

SHAPES = {
    "tables": ((2, 3, 5), torch.int32),
    "lengths": ((3,), torch.int32),
    "states": ((2, 4), torch.int64),
    "rows": ((3,), torch.int64),
}
MOST = 2 * 3 * 5 + 3 + 2 * (2 * 4 + 3)  # words of all
LARGE = [2**63 - 1, -(2**63), -1, 2**31]


def copies_of(memory: SlotMemory, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each copy has, as they are sent."""
    copies, send = [], memory.staging.send
    monkeypatch.setattr(memory.staging, "send", lambda numbers: copies.append(len(numbers)) or send(numbers))
    return copies


def test_tensors_are_zeros_at_first_and_have_their_own_aligned_places():
    memory = SlotMemory(SHAPES, MOST, CPU)
    for number, (name, (shape, dtype)) in enumerate(SHAPES.items(), start=1):
        tensor = memory[name]
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
        assert tensor.data_ptr() % (4 * ALIGNMENT) == memory["tables"].data_ptr() % (4 * ALIGNMENT)
        assert not tensor.any()
        tensor.fill_(number)
    for number, name in enumerate(SHAPES, start=1):
        assert (memory[name] == number).all()


def assert_put_is_written(device: torch.device) -> None:
    memory = SlotMemory(SHAPES, MOST, device)
    expected = {name: memory[name].cpu().numpy().copy() for name in SHAPES}
    rng = np.random.default_rng(0)
    for _ in range(20):
        slots = rng.permutation(3)[: rng.integers(1, 4)].tolist()
        for name, where in {
            "tables": np.s_[:, slots],
            "lengths": np.s_[slots],
            "states": np.s_[:, slots],
            "rows": ...,
        }.items():
            there = expected[name]
            numbers = rng.integers(-9, 9, there[where].shape).astype(there.dtype)
            memory.put(name, where, numbers)
            there[where] = numbers
        memory.write()
        for name in SHAPES:
            assert memory[name].tolist() == expected[name].tolist()


def test_what_is_put_is_what_an_assignment_would_have_left():
    assert_put_is_written(CPU)


def test_all_64_bits_arrive_and_those_of_fractions_too():
    memory = SlotMemory(SHAPES, MOST, CPU)
    fractions = np.array([0.1, -0.0, 5e-324, 1.7976931348623157e308])
    memory.put("states", ..., np.array([LARGE, fractions.view(np.int64)]))
    memory.write()
    assert memory["states"][0].tolist() == LARGE
    assert [f.hex() for f in memory["states"].view(torch.float64)[1].tolist()] == [f.hex() for f in fractions]


def test_all_goes_in_one_copy_and_nothing_in_none(monkeypatch):
    memory = SlotMemory(SHAPES, MOST, CPU)
    copies = copies_of(memory, monkeypatch)
    memory.write()
    memory.put("lengths", [1], np.array([7], dtype=np.int32))
    memory.put("rows", [0, 2], np.array([8, 9]))
    assert not memory["lengths"].any() and not memory["rows"].any()
    memory.write()
    memory.write()
    assert copies == [packed_size(1 + 2 * 2)]
    assert memory["lengths"].tolist() == [0, 7, 0]
    assert memory["rows"].tolist() == [8, 0, 9]


def test_what_is_discarded_is_not_written(monkeypatch):
    memory = SlotMemory(SHAPES, MOST, CPU)
    copies = copies_of(memory, monkeypatch)
    memory.put("lengths", ..., np.array([1, 2, 3], dtype=np.int32))
    memory.discard()
    memory.write()
    assert copies == [] and not memory["lengths"].any()


def test_a_copy_that_fails_leaves_nothing_for_the_next_write(monkeypatch):
    memory = SlotMemory(SHAPES, MOST, CPU)
    memory.put("lengths", ..., np.array([1, 2, 3], dtype=np.int32))
    with monkeypatch.context() as patch:
        patch.setattr(memory.staging, "send", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            memory.write()
    memory.put("rows", [1], np.array([4]))
    memory.write()
    assert not memory["lengths"].any()
    assert memory["rows"].tolist() == [0, 4, 0]


@pytest.mark.cuda
def test_on_a_gpu_what_is_put_is_what_an_assignment_would_have_left():
    assert_put_is_written(CUDA)
