"""The trials of writes: which cases they try, and what they count."""

import pytest
import torch

from labkit.kvcache.kv_write import is_constant
from labkit.learn.gates import writes
from labkit.learn.gates.writes import CASES, PAIRS, IndexTensors, far_blocks


def test_every_kind_of_write_is_tried_with_heads_of_a_power_of_two_and_others():
    kinds = {(case.is_whole, is_constant(case.pos), case.head_dim == 16) for case in CASES}
    assert kinds == {(w, c, p) for w in (True, False) for c in (True, False) for p in (True, False)}


@pytest.mark.parametrize("case", [*CASES, *(case for pair in PAIRS for case in pair)], ids=str)
def test_a_case_writes_each_slot_once_and_leaves_some_alone(case):
    slots = list(zip(case.block_idx, case.pos, strict=True))
    assert len(case.batch_idx) == len(set(slots)) == len(set(case.batch_idx)) <= case.batch_size
    assert max(case.block_idx) < writes.NUM_BLOCKS and max(case.pos) < writes.BLOCK_SIZE


def test_the_writes_of_a_pair_differ_in_one_list_alone():
    changed = []
    for first, second in PAIRS:
        names = [name for name, a, b in zip(first._fields, first, second, strict=True) if a != b]
        changed += names
        assert len(names) == 1
    assert set(changed) == {"batch_idx", "block_idx", "pos"}


def test_index_tensors_are_counted_where_they_are_made_of_numbers():
    with IndexTensors() as made:
        indices = torch.tensor([1, 2], dtype=torch.int32)
        torch.arange(3)
        indices.long().sum()
        torch.zeros(3)[[0, 1]]
        torch.tensor([1.0])
    assert made.count == 3


def test_where_no_large_pool_can_be_reserved_nothing_is_proven_about_it(monkeypatch):
    class Unused:
        def write(self, *arguments):
            raise AssertionError("nothing is written")

    def no_memory(*arguments, **settings):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(writes, "_built", lambda build: (Unused(), torch.device("cpu")))
    monkeypatch.setattr(torch, "empty", no_memory)
    far_blocks(None)
