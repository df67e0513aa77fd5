"""Trials of what writes a batch's keys and values into their slots: every number of a pool, compared."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

from labkit.kvcache.kv_write import KVWrite, is_constant
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Trial, small_model
from labkit.watch.operators import OperatorMode, tensors_of

NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE = 3, 6, 4
LAYER = 1  # that is written; whatever runs over its end is seen in the next one
SLACK = 256  # numbers behind the last key, so that a load without a mask meets memory of ours
INDEX_TENSORS = {"full_batch": 1, "identity_pos": 2}  # that a path needs

PathOf = Callable[[bool, bool], str]  # (whether the whole batch is written, whether all are at one position)


class Case(NamedTuple):
    """A write: which of B requests, with how many heads of which size, to which slots of which blocks."""

    batch_size: int
    num_heads: int
    head_dim: int
    batch_idx: tuple[int, ...]
    block_idx: tuple[int, ...]
    pos: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"with requests {list(self.batch_idx)} of a batch of {self.batch_size} (heads: {self.num_heads} "
            f"of {self.head_dim}) to slots {list(self.pos)} of blocks {list(self.block_idx)}"
        )

    @property
    def is_whole(self) -> bool:
        """Whether every request of the batch is written."""
        return len(self.batch_idx) == self.batch_size

    @property
    def indices(self) -> tuple[Sequence[int], list[int], list[int]]:
        """What `write` is given, as the block manager gives it."""
        batch_idx = range(self.batch_size) if self.is_whole else list(self.batch_idx)
        return batch_idx, list(self.block_idx), list(self.pos)


CASES = (
    Case(3, 2, 16, (0, 1, 2), (4, 1, 2), (2, 2, 2)),
    Case(1, 2, 16, (0,), (3,), (0,)),
    Case(2, 2, 16, (0, 1), (1, 0), (3, 1)),
    Case(3, 2, 16, (0, 1, 2), (5, 1, 2), (2, 0, 2)),  # the first and the last are at one position
    Case(4, 2, 16, (0, 1, 2, 3), (3, 1, 2, 0), (1, 1, 1, 0)),
    Case(4, 2, 16, (0, 2, 3), (5, 0, 2), (1, 1, 1)),
    Case(4, 2, 16, (1, 3), (5, 0), (3, 0)),
    Case(3, 3, 20, (0, 1, 2), (2, 1, 0), (3, 3, 3)),  # heads of no power of 2
    Case(3, 3, 20, (0, 1, 2), (2, 1, 0), (1, 0, 2)),
    Case(3, 3, 20, (0, 2), (5, 1), (1, 0)),
    Case(3, 3, 20, (1, 2), (5, 1), (2, 2)),
    Case(2, 1, 80, (0, 1), (0, 5), (1, 1)),
    Case(2, 1, 80, (0, 1), (0, 5), (1, 2)),
    Case(2, 1, 192, (0, 1), (0, 5), (0, 0)),  # more than a program may want to move at a time
)


def right_slots(path_of: PathOf) -> Trial:
    """A trial: each key and value is in its slot, all others are as they were, and the path is the right
    one.

    path_of: the name of the path for a whole batch or not, at one position or not.
    """

    def trial(build: Build) -> None:
        kv_write, device = _built(build)
        for case in CASES:
            _try(kv_write, case, path_of(case.is_whole, is_constant(case.pos)), device)

    return trial


def _built(build: Build) -> tuple[KVWrite, torch.device]:
    engine = build(small_model(), dtype=torch.float32)
    return engine.kv_manager.kv_write, engine.device


@torch.inference_mode()
def _try(kv_write: KVWrite, case: Case, expected_path: str, device: torch.device) -> None:
    like = torch.Generator().manual_seed(0)
    shape = (NUM_LAYERS, NUM_BLOCKS, case.num_heads, BLOCK_SIZE, case.head_dim)
    before = [torch.randn(shape, generator=like).to(device) for _ in range(2)]
    k_cache, v_cache = (pool.clone() for pool in before)
    new = _laid_out_by_a_model(case, like).to(device)  # [B, 3, H, D]
    key_new, value_new = new[:, 1], new[:, 2]
    path = kv_write.write(k_cache[LAYER], v_cache[LAYER], key_new, value_new, *case.indices)
    _compare("key", k_cache, before[0], key_new, case)
    _compare("value", v_cache, before[1], value_new, case)
    if path != expected_path:
        raise BrokenContract(
            f"the path is told: {case}, `write` returned {one_line(repr(path))}, expected "
            f"{expected_path!r}. {HINTS[expected_path]}"
        )


HINTS = {
    "full_batch": "Where the whole batch is at one position, blocks alone differ: batch_idx is 0, 1, 2, … "
    "and the position is a number.",
    "identity_pos": "Where the whole batch is written, batch_idx is 0, 1, 2, … and need not be sent; "
    "positions differ.",
    "generic": "Here the kernel needs the batch, the blocks and the positions.",
}


def _laid_out_by_a_model(case: Case, like: torch.Generator) -> Tensor:
    """Queries, keys and values [B, 3, H, D]: keys of two requests do not lie side by side."""
    shape = (case.batch_size, 3, case.num_heads, case.head_dim)
    count = torch.Size(shape).numel()
    return torch.randn(count + SLACK, generator=like)[:count].view(shape)


def _compare(noun: str, pool: Tensor, before: Tensor, new: Tensor, case: Case) -> None:
    """Raises BrokenContract for the first number of a pool [L, N, H, block_size, D] that is off."""
    expected = before.clone()
    owners = {}
    for b, block, slot in zip(case.batch_idx, case.block_idx, case.pos, strict=True):
        expected[LAYER, block, :, slot] = new[b]
        owners[LAYER, block, slot] = b
    wrong = (pool != expected).nonzero().tolist()
    if not wrong:
        return
    # A slot that lacks its own is told before one that was written on top.
    layer_idx, block, head, slot, d = min(wrong, key=lambda at: (at[0], at[1], at[3]) not in owners)
    place = (layer_idx, block, head, slot, d)
    there, wanted, was = (float(numbers[place]) for numbers in (pool, expected, before))
    owner = owners.get((layer_idx, block, slot))
    where = f"layer {layer_idx - LAYER:+}, " if layer_idx != LAYER else ""
    at = f"{where}slot {slot} of block {block}, head {head}, number {d} of {case.head_dim}"
    if owner is None:
        raise BrokenContract(
            f"no slot is touched but those that are named: {case}, the {noun} in {at}, was {was:.3f} and is "
            f"{there:.3f} now, expected no change. Past a head's last number comes the next slot: a mask "
            "keeps a block of numbers inside of the head. A request that is not named is left alone."
        )
    untouched = " (nothing was written)" if there == was else ""
    raise BrokenContract(
        f"each named request's {noun} is in its slot: {case}, the {noun} of request {owner} in {at}, is "
        f"{there:.3f}{untouched}, expected {wanted:.3f}. The i-th of batch_idx, block_idx and pos belong "
        "together; keys and values have strides of their own."
    )


# --- what is sent ---------------------------------------------------------------------------------------


@torch.inference_mode()
def few_indices(build: Build) -> None:
    """No path for a whole batch makes an index tensor that it does not need, or one of them twice."""
    kv_write, device = _built(build)
    for case in filter(lambda case: case.is_whole, CASES):
        k_layer, v_layer = torch.zeros(
            2, NUM_BLOCKS, case.num_heads, BLOCK_SIZE, case.head_dim, device=device
        )
        new = torch.ones(2, case.batch_size, case.num_heads, case.head_dim, device=device)
        with IndexTensors() as made:
            path = kv_write.write(k_layer, v_layer, new[0], new[1], *case.indices)
        if made.count > INDEX_TENSORS.get(path, made.count):
            raise BrokenContract(
                f"no index is sent that the path does not need: {case}, {made.count} index tensors were "
                f"made, expected at most {INDEX_TENSORS[path]} on the path {path!r}, once for keys and "
                f"values. {HINTS[path]}"
            )


class IndexTensors(OperatorMode):
    """Counts the integer tensors that are made of Python's numbers inside its `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Count a tensor of indices."""
        if func.overloadpacket in (torch.ops.aten.lift_fresh, torch.ops.aten.arange):
            self.count += sum(made.dtype in (torch.int32, torch.int64) for made in tensors_of(out))


# --- far away -------------------------------------------------------------------------------------------

FAR_CASES = (
    Case(1, 2, 64, (0,), (2**18,), (5,)),
    Case(2, 2, 64, (0, 1), (2**18, 1), (5, 0)),
    Case(3, 2, 64, (1,), (2**18,), (5,)),
)


@torch.inference_mode()
def far_blocks(build: Build) -> None:
    """A block past the 2**32nd number of the pool is found: with an index of 32 bits it is block 0.

    The numbers are bytes, and of the memory, which is only reserved, a few pages are touched. Where 4.3 GB
    cannot be reserved, nothing is proven.
    """
    kv_write, device = _built(build)
    far, H, D, block_size = 2**18, 2, 64, 64
    try:
        pool = torch.empty(far + 1, 2, H, block_size, D, dtype=torch.uint8, device=device)
    except RuntimeError:
        return
    k_layer, v_layer = pool.unbind(1)
    for case in FAR_CASES:
        for block in (0, *case.block_idx):
            pool[block] = 0
        new = torch.full((2, case.batch_size, H, D), 7, dtype=torch.uint8, device=device)
        kv_write.write(k_layer, v_layer, new[0], new[1], *case.indices)
        if not (pool[far, :, :, case.pos[0]] == 7).all():
            at = "in block 0" if pool[0].any() else "not there"
            raise BrokenContract(
                f"a place in a large pool is found: {case}, whose numbers begin 2**32 behind the pool's "
                f"first, what was written is {at}. `block * stride` needs 64 bits: `.to(tl.int64)` the block "
                "after its load."
            )
