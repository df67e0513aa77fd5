"""Lesson 04's forms: the package's identity-pos write by itself."""

import pytest
import torch

from labkit.kernels import kv_append_plain
from labkit.learn.lesson_04.forms import write_identity_pos


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
