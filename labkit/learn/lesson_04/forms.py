"""Lesson 04: forms of a write, a toy of it, and its traps."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from labkit.kernels import kv_append_identity_pos_plain, kv_append_triton_identity_pos
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.kvcache.kv_write import KVWrite, index_tensor, is_constant, runs_triton
from labkit.watch import OperatorCounter

# --- which write each rung takes for which batch -------------------------------------------------------


def write_identity_pos(
    k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, blocks: Tensor, slots: Tensor
) -> None:
    """The package's write of a whole batch, request b to slot slots[b] of block blocks[b]: its kernel where
    kernels run compiled, elsewhere its plain twin. Raises TypeError for an index that is no tensor."""
    for name, index in (("blocks", blocks), ("slots", slots)):
        if not isinstance(index, Tensor):
            kind = type(index).__name__
            raise TypeError(
                f"{name} is a {kind}, expected an index tensor: self.index(name, numbers) makes one"
            )
    write = kv_append_triton_identity_pos if runs_triton(key.device) else kv_append_identity_pos_plain
    write(k_cache, v_cache, key, value, blocks, slots)


BATCH = 4
BATCHES = {  # (whole batch?, equal positions?): the requests that are written, and their slots
    ("yes", "yes"): (range(BATCH), [5] * BATCH),
    ("yes", "no"): (range(BATCH), [5, 0, 7, 2]),
    ("no", "yes"): ([0, 1, 3], [5, 5, 5]),
    ("no", "no"): ([0, 1, 3], [5, 0, 2]),
}
WRITES = {"rung 02": IndexedWrite, "rung 03": FullBatchWrite, "rung 04": IdentityPosWrite}


def dispatch_table(device: torch.device) -> pd.DataFrame:
    """A table of four kinds of batches: for the write of each rung, the path that it took and how many index
    tensors it made."""
    rows = []
    for (whole, equal), (batch_idx, pos) in BATCHES.items():
        row = {"whole batch?": whole, "equal positions?": equal}
        for name, kind in WRITES.items():
            path, num_tensors = written_by(kind(device), batch_idx, pos, device)
            row[name] = f"{path}, {num_tensors} index tensor{'s' * (num_tensors > 1)}"
        rows.append(row)
    return pd.DataFrame(rows).set_index(["whole batch?", "equal positions?"])


def written_by(
    write: KVWrite, batch_idx: Sequence[int], pos: Sequence[int], device: torch.device
) -> tuple[str, int]:
    """Write a batch of tokens, and return the path taken and how many index tensors were made."""
    k_cache, v_cache = torch.zeros(2, BATCH, 2, 8, 64, device=device)  # [N, H, block_size, D] each
    key_new, value_new = torch.ones(2, BATCH, 2, 64, device=device)
    with OperatorCounter() as counter:
        path = write.write(k_cache, v_cache, key_new, value_new, batch_idx, list(batch_idx), pos)
    return path, counter.index_tensors


# --- the package's identity-pos kernel for the toy write of lesson 03, in the interpreter too ----------


class TritonWrite(FullBatchWrite):
    """A whole batch by the identity-pos kernel; whatever else as on rung 03."""

    def write(
        self,
        k_cache_layer: Tensor,
        v_cache_layer: Tensor,
        key_new: Tensor,
        value_new: Tensor,
        batch_idx: Sequence[int],
        block_idx: Sequence[int],
        pos: Sequence[int],
    ) -> str:
        """Write the requests of batch_idx, with arguments as in `KVWrite`; returns the path taken."""
        to = k_cache_layer, v_cache_layer, key_new, value_new
        if len(batch_idx) < len(key_new):
            return super().write(*to, batch_idx, block_idx, pos)
        kv_append_triton_identity_pos(*to, *(index_tensor(i, key_new.device) for i in (block_idx, pos)))
        return "identity_pos"


# --- writes that are wrong on purpose ------------------------------------------------------------------


class KeptByLength(FullBatchWrite):
    """Keeps index tensors, and takes a kept one for every list that is as long as its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.device = device
        self.kept: dict[tuple[str, int], Tensor] = {}

    def index(self, name: str, numbers: Sequence[int]) -> Tensor:
        """The numbers as a tensor, or what was kept of other ones."""
        key = name, len(numbers)
        if key not in self.kept:
            self.kept[key] = index_tensor(numbers, self.device)
        return self.kept[key]

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos) -> str:
        """Write the requests of batch_idx, with arguments as in `KVWrite`; returns the path taken."""
        to = k_cache_layer, v_cache_layer, key_new, value_new
        if len(batch_idx) < len(key_new) or is_constant(pos):
            return super().write(*to, batch_idx, block_idx, pos)
        write_identity_pos(*to, self.index("blocks", block_idx), self.index("slots", pos))
        return "identity_pos"
