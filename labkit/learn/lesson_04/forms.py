"""Lesson 04: which write each rung takes for which batch, and the package's identity-pos write by itself."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from labkit.kernels import kv_append_identity_pos_plain, kv_append_triton_identity_pos
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.kvcache.kv_write import KVWrite, runs_triton
from labkit.watch import OperatorCounter


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
