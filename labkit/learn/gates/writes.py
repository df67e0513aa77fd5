"""Trials of what writes a batch's keys and values into their slots: every number of a pool, compared."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.kvcache.kv_write import KVWrite, is_constant
from labkit.learn.answers import beside, one_line
from labkit.learn.exercise import BrokenContract, Unattempted
from labkit.learn.gates.gate import Build, Trial, kernel_hint, raised, small_model
from labkit.watch.accesses import WRITE, KernelRun, Program, Stray, record_accesses
from labkit.watch.launches import LaunchRecorder

NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE = 3, 6, 4  # of the pool that CASES and PAIRS write to
LAYER = 1  # that is written; whatever runs over its end is seen in the next one
KINDS = {  # by the path that a write takes, where there are all
    "full_batch": "the whole batch goes to one slot",
    "identity_pos": "the whole batch goes to slots that differ",
    "generic": "a part of the batch is written",
}
HINTS = {
    "full_batch": "On that path only the blocks differ: batch_idx is 0, 1, 2, … (a `range` is never "
    "equal to a list), and the slot is a number.",
    "identity_pos": "On that path blocks and slots differ: batch_idx is 0, 1, 2, … (a `range` is never "
    "equal to a list) and need not be sent.",
    "generic": "On that path the kernel needs the rows of the batch, the blocks and the slots.",
}
INDEX_TENSORS = {"full_batch": 1, "identity_pos": 2}  # that a path needs
MAKES_INDICES = ("aten.lift_fresh", "aten.arange")  # operators by which Python's numbers become tensors


class Case(NamedTuple):
    """A write: which of B requests, with how many heads of which size, to which slots of which blocks."""

    batch_size: int
    num_heads: int
    head_dim: int
    batch_idx: tuple[int, ...]
    block_idx: tuple[int, ...]
    pos: tuple[int, ...]
    slots_first: bool = False  # in the pool's memory, slots of a block come before heads

    def __str__(self) -> str:
        return (
            f"with requests {list(self.batch_idx)} of a batch of {self.batch_size} ({self.num_heads} heads "
            f"of {self.head_dim} values) to slots {list(self.pos)} of blocks {list(self.block_idx)}"
        )

    @property
    def is_whole(self) -> bool:
        """Whether every request of the batch is written."""
        return len(self.batch_idx) == self.batch_size

    @property
    def path(self) -> str:
        """The path of such a write, where there are all."""
        if not self.is_whole:
            return "generic"
        return "full_batch" if is_constant(self.pos) else "identity_pos"

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
    Case(4, 2, 16, (1, 3), (5, 0), (3, 0)),
    Case(4, 2, 16, (0, 1), (5, 0), (3, 0)),  # as far as it goes, the identity
    Case(3, 3, 20, (0, 1, 2), (2, 1, 0), (3, 3, 3)),  # heads of no power of 2
    Case(3, 3, 20, (0, 1, 2), (2, 1, 0), (1, 0, 2)),
    Case(3, 3, 20, (0, 2), (5, 1), (1, 0)),
    Case(3, 2, 16, (0, 1), (4, 2), (1, 1)),  # the first requests of a batch, at one position
    Case(2, 2, 16, (0, 1), (4, 2), (1, 1), slots_first=True),
    Case(2, 2, 16, (0, 1), (4, 2), (1, 3), slots_first=True),
    Case(3, 2, 16, (0, 2), (4, 2), (1, 3), slots_first=True),
)

FIRST = Case(3, 2, 16, (0, 1, 2), (4, 1, 2), (2, 0, 1))
AT_ONE_SLOT = FIRST._replace(pos=(1, 1, 1))
OF_A_PART = Case(4, 2, 16, (0, 2), (4, 1), (1, 2))
PAIRS = (  # writes of one part, one after the other
    (FIRST, FIRST._replace(pos=(3, 1, 2))),
    (FIRST, FIRST._replace(pos=(0, 2, 1))),
    (AT_ONE_SLOT, AT_ONE_SLOT._replace(block_idx=(4, 3, 2))),
    (OF_A_PART, OF_A_PART._replace(batch_idx=(1, 2))),
    (FIRST, Case(2, 2, 16, (0, 1), (4, 1), (2, 0))),  # a request has left
)

FAR_BLOCK = 2**18  # of a larger pool, past its 2**32nd number
FAR_CASES = (
    Case(1, 2, 64, (0,), (FAR_BLOCK,), (5,)),
    Case(2, 2, 64, (0, 1), (FAR_BLOCK, 1), (5, 0)),
    Case(3, 2, 64, (1,), (FAR_BLOCK,), (5,)),
)


def write_trials(*paths: str) -> tuple[Trial, ...]:
    """The trials of a write that has these of the paths for a whole batch beside the generic one."""
    return partial(right_again, paths=paths), partial(right_slots, paths=paths), few_indices, far_blocks


def right_slots(build: Build, paths: Sequence[str]) -> None:
    """A trial: each key and value is in its slot, all others are as they were, and the path is right."""
    kv_write, device = _built(build)
    for case in CASES:
        _try(kv_write, case, paths, device)
        if device.type == "cuda":  # and now that it is known to be harmless, compiled
            _try(kv_write, case, paths, device, recorded=False)


def right_again(build: Build, paths: Sequence[str]) -> None:
    """A trial: a second write, which differs from the first in one of its lists, goes where its own lists
    say; what was kept of the first must not be used for it. A wrong first write is left to `right_slots`."""
    kv_write, device = _built(build)
    for first, second in PAIRS:
        try:
            _try(kv_write, first, paths, device)
        except BrokenContract:
            return
        try:
            _try(kv_write, second, paths, device)
        except BrokenContract as broken:
            found = str(broken).removesuffix(ENTRIES).partition(": ")[2].rstrip()
            raise BrokenContract(
                "a write uses its own lists, and none that was kept from another write: after a write to "
                f"slots {list(first.pos)} of blocks {list(first.block_idx)}, {found} Hand out a kept tensor "
                "only for a list that equals its own."
            ) from broken


def _built(build: Build) -> tuple[KVWrite, torch.device]:
    engine = build(small_model(), dtype=torch.float32)
    return engine.kv_manager.kv_write, engine.device


PART = "Here a part of the batch is written: it has more rows than the lists have entries."
ENTRIES = (
    "The i-th of batch_idx, block_idx and pos belong together; keys and values have strides of their own."
)


@torch.inference_mode()
def _try(
    kv_write: KVWrite, case: Case, paths: Sequence[str], device: torch.device, recorded: bool = True
) -> None:
    """Raises BrokenContract for the first thing about a write that is off. recorded: kernels are interpreted,
    each access is looked at, and none that runs out of memory is made."""
    like = torch.Generator().manual_seed(0)
    shape = (NUM_LAYERS, NUM_BLOCKS, case.num_heads, BLOCK_SIZE, case.head_dim)
    before = [torch.randn(shape, generator=like).to(device) for _ in range(2)]
    k_cache, v_cache = (pool.clone() for pool in before)
    if case.slots_first:
        k_cache, v_cache = (pool.transpose(2, 3).contiguous().transpose(2, 3) for pool in before)
    qkv = torch.randn(case.batch_size, 3, case.num_heads, case.head_dim, generator=like).to(device)
    key_new = qkv[:, 1]  # as a model lays them out: those of two requests do not lie side by side
    value_new = qkv[:, 2].contiguous()  # of other strides: those of two requests lie side by side
    with record_accesses() if recorded else nullcontext([]) as runs:
        try:
            path = kv_write.write(k_cache[LAYER], v_cache[LAYER], key_new, value_new, *case.indices)
        except Unattempted:
            raise
        except Exception as error:  # whatever the reader's code raises
            hint = kernel_hint(error) or ("" if case.is_whole else f" {PART}")
            raise BrokenContract(
                f"every write can be made: {case}, `write` {raised(error)}.{hint}"
            ) from error
    strays = [(run, stray) for run in runs for stray in run.strays()]
    for run, stray in strays:
        if stray.kind == WRITE or _is_index(run, stray):  # which explains what is not in its slot
            raise _told(run, stray, case)
    _compare("key", k_cache, before[0], key_new, case)
    _compare("value", v_cache, before[1], value_new, case)
    for run, stray in strays:
        raise _told(run, stray, case)
    for run in runs:
        _check_written_once(run, case)
    expected_path = case.path if case.path in paths else "generic"
    if path != expected_path:
        raise BrokenContract(
            f"`write` takes the path of its batch, and returns its name: {KINDS[case.path]}, and it returned "
            f"{one_line(repr(path))}, expected {expected_path!r}. {HINTS[expected_path]} Tried {case}."
        )


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
    place = min(wrong, key=lambda at: (at[0], at[1], at[3]) not in owners)
    layer_idx, block, _, slot, _ = place
    there, wanted, was = (float(numbers[tuple(place)]) for numbers in (pool, expected, before))
    owner = owners.get((layer_idx, block, slot))
    at = f"{_named(place)} of {case.head_dim}"
    if owner is None:
        mask = (
            "Past a head's last number comes the next slot: a mask keeps a block of numbers inside of the "
            "head. A request that is not named stays as it is."
        )
        why = mask if case.is_whole else f"{PART} Everything that is not named stays as it is."
        raise BrokenContract(
            f"only the named slots are written: {case}, the {noun} in {at}, was {was:.3f} and is "
            f"{there:.3f} now, expected no change. {why}"
        )
    told, told_wanted = beside(there, wanted)
    elsewhere = ((pool == wanted) & (before != wanted)).nonzero().tolist()
    strides = " In this pool's memory a slot's heads lie side by side: take every stride from the tensor."
    raise BrokenContract(
        f"each named request's {noun} is in its slot: {case}, the {noun} of request {owner} in {at}, is "
        f"{told}{' (nothing was written)' if there == was else ''}, expected {told_wanted}"
        f"{f' (it went to {_named(elsewhere[0])})' if elsewhere else ''}. {ENTRIES}"
        f"{strides if case.slots_first else ''}"
    )


def _named(place: Sequence[int]) -> str:
    """Where a number of a pool [L, N, H, block_size, D] is, in words; the layer if it is not LAYER."""
    layer_idx, block, head, slot, d = place
    where = f"layer {layer_idx - LAYER:+}, " if layer_idx != LAYER else ""
    return f"{where}slot {slot} of block {block}, head {head}, number {d}"


def _check_written_once(run: KernelRun, case: Case) -> None:
    """Raises BrokenContract for a number that two programs of a launch write."""
    for tensor in run.layouts:
        writers: dict[int, Program] = {}
        for offset, kind, program in run.touched(tensor):
            if kind == WRITE and writers.setdefault(offset, program) != program:
                raise BrokenContract(
                    f"no two programs write one number: {case}, programs {writers[offset]} and {program} of "
                    f"{run.kernel} both write number {offset:,} behind the first of their tensor; the grid "
                    f"is {run.grid}. A program has its own request and head: what it loops over needs no "
                    "axis of the grid."
                )


def _is_index(run: KernelRun, stray: Stray) -> bool:
    return len(run.layouts[stray.tensor].shape) == 1


def _told(run: KernelRun, stray: Stray, case: Case) -> BrokenContract:
    """An access that met no element of its tensor, as a sentence."""
    if _is_index(run, stray):
        hint = "The grid's first axis has a program for each entry of an index tensor, and no more."
    else:
        hint = (
            "A mask stops the lanes past a head's end, of a load as of a store; and each index goes with its "
            "own stride. So does each axis of the grid: the first is for requests, the second for heads."
        )
    return BrokenContract(
        f"a kernel touches the elements of its tensors and nothing else: {case}, program {stray.program} of "
        f"{run.kernel} {stray.kind}s {stray.offset:,} numbers from the first of {stray.tensor}, "
        f"{list(run.layouts[stray.tensor].shape)}, where no element of it is; the grid is {run.grid}. {hint}"
    )


@torch.inference_mode()
def few_indices(build: Build) -> None:
    """A trial: no path for a whole batch makes an index tensor that it does not need, or one twice."""
    kv_write, device = _built(build)
    for case in filter(lambda case: case.is_whole, CASES):
        shape = (NUM_BLOCKS, case.num_heads, BLOCK_SIZE, case.head_dim)
        k_layer, v_layer = torch.zeros(2, *shape, device=device)
        new = torch.ones(2, case.batch_size, case.num_heads, case.head_dim, device=device)
        # An index that is out of date could lead anywhere: nothing outside is touched.
        with record_accesses() if device.type == "cpu" else nullcontext(), LaunchRecorder() as seen:
            path = kv_write.write(k_layer, v_layer, *new, *case.indices)
        made = [
            tensor for launch in seen.launches if launch.name in MAKES_INDICES for tensor in launch.outputs
        ]
        count = sum(tensor.dtype in (torch.int32, torch.int64) for tensor in made)
        if count > INDEX_TENSORS.get(path, count):
            raise BrokenContract(
                f"no index is sent that the path does not need: {case}, {count} index tensors were "
                f"made, expected at most {INDEX_TENSORS[path]} on the path {path!r}, once for keys and "
                f"values. {HINTS[path]}"
            )


@torch.inference_mode()
def far_blocks(build: Build) -> None:
    """A trial: what is written into a far block is there."""
    kv_write, device = _built(build)
    for case in FAR_CASES:

        def write(new: Tensor, k_layer: Tensor, v_layer: Tensor) -> None:
            kv_write.write(k_layer, v_layer, new, new, *case.indices)  # noqa: B023

        new = torch.full((case.batch_size, 2, 64), 7, dtype=torch.uint8, device=device)
        check_far_block(write, new, str(case), case.pos[0])


def check_far_block(
    write: Callable[[Tensor, Tensor, Tensor], object], new: Tensor, what: str, slot: int = 0
) -> None:
    """A block past the 2**32nd number of the pool is found: with an index of 32 bits it is block 0.

    write: of the new values [B, 2, 64] and both pools. The pools' memory is only reserved; a few pages are
    touched. Where it cannot be reserved, nothing is proven.
    """
    try:
        pool = new.new_empty(FAR_BLOCK + 1, 2, 2, 64, 64)
    except RuntimeError:
        return
    for block in (0, 1, FAR_BLOCK):
        pool[block] = 0
    with record_accesses() if new.device.type == "cpu" else nullcontext():  # nothing outside is touched
        write(new, *pool.unbind(1))
    if not (pool[FAR_BLOCK, :, :, slot] == new[0, 0, 0]).all():
        at = "in block 0" if pool[0].any() else "not there"
        raise BrokenContract(
            f"a place in a large pool is found: {what}, in block {FAR_BLOCK}, whose numbers begin 2**32 "
            f"behind the pool's first, and is {at}. `block * stride` needs 64 bits: `.to(tl.int64)` the "
            "block after its load."
        )
