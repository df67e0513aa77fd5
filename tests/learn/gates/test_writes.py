"""The trials of writes: what they count, and what they cannot prove."""

import torch

from labkit.learn.gates import writes
from labkit.learn.gates.writes import IndexTensors, far_blocks


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
