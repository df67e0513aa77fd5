"""Trials of what writes a batch's keys and values into their slots: every number of a pool, compared."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from labkit.kvcache.kv_write import KVWrite
from labkit.learn.answers import beside, one_line
from labkit.learn.exercise import BrokenContract, Unattempted
from labkit.learn.gates.gate import Build, Trial, raised, small_model
from labkit.learn.gates.kernel_hints import kernel_hint
from labkit.learn.gates.write_cases import BLOCK_SIZE, CASES, FAR_BLOCK, FAR_CASES, NUM_BLOCKS, PAIRS, Case
from labkit.watch.accesses import WRITE, KernelRun, Program, Stray, record_accesses
from labkit.watch.launches import LaunchRecorder

NUM_LAYERS = 3
LAYER = 1  # that is written; whatever runs over its end is seen in the next one
SLACK = 256  # numbers behind the last key, so that a load without a mask meets memory of ours
INDEX_TENSORS = {"full_batch": 1, "identity_pos": 2}  # that a path needs
MAKES_INDICES = ("aten.lift_fresh", "aten.arange")  # operators by which Python's numbers become tensors


def write_trials(*paths: str) -> tuple[Trial, ...]:
    """The trials of a write that has these of the paths for a whole batch beside the generic one."""
    return partial(right_again, paths=paths), partial(right_slots, paths=paths), few_indices, far_blocks


def right_slots(build: Build, paths: Sequence[str]) -> None:
    """A trial: each key and value is in its slot, all others are as they were, and the path is the right
    one."""
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
            raise BrokenContract(
                "a write uses its own lists, and none that was kept from another write: after a write to "
                f"slots {list(first.pos)} of blocks {list(first.block_idx)}, "
                f"{str(broken).removesuffix(ENTRIES).rstrip()} {KEPT}"
            ) from broken


def _built(build: Build) -> tuple[KVWrite, torch.device]:
    engine = build(small_model(), dtype=torch.float32)
    return engine.kv_manager.kv_write, engine.device


@torch.inference_mode()
def _try(
    kv_write: KVWrite,
    case: Case,
    paths: Sequence[str],
    device: torch.device,
    recorded: bool = True,
) -> None:
    """Raises BrokenContract for the first thing about a write that is off. recorded: kernels are interpreted,
    each access is looked at, and none that runs out of memory is made."""
    like = torch.Generator().manual_seed(0)
    shape = (NUM_LAYERS, NUM_BLOCKS, case.num_heads, BLOCK_SIZE, case.head_dim)
    before = [torch.randn(shape, generator=like).to(device) for _ in range(2)]
    k_cache, v_cache = (pool.clone() for pool in before)
    if case.slots_first:
        k_cache, v_cache = (pool.transpose(2, 3).contiguous().transpose(2, 3) for pool in before)
    of_qkv = torch.Size((case.batch_size, 3, case.num_heads, case.head_dim))
    qkv = torch.randn(of_qkv.numel() + SLACK, generator=like).to(device)[: of_qkv.numel()].view(of_qkv)
    key_new = qkv[:, 1]  # as a model lays them out: those of two requests do not lie side by side
    values = qkv.new_zeros(key_new.numel() + SLACK)[: key_new.numel()].view(key_new.shape)
    value_new = values.copy_(qkv[:, 2])  # of other strides: those of two requests lie side by side
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
        if twice := _written_twice(run):
            raise BrokenContract(
                f"no two programs write one number: {case}, programs {twice[1]} and {twice[2]} of "
                f"{run.kernel} both write number {twice[0]:,} behind the first of their tensor; the grid is "
                f"{run.grid}. A program has its own request and head: what it loops over needs no axis of "
                "the grid."
            )
    expected_path = case.path if case.path in paths else "generic"
    if path != expected_path:
        raise BrokenContract(
            f"`write` takes the path of its batch, and returns its name: {case.kind}, and it returned "
            f"{one_line(repr(path))}, expected {expected_path!r}. {HINTS[expected_path]} Tried {case}."
        )


PART = "Here a part of the batch is written: it has more rows than the lists have entries."
HINTS = {
    "full_batch": "On that path only the blocks differ: batch_idx is 0, 1, 2, … (a `range` is never "
    "equal to a list), and the slot is a number.",
    "identity_pos": "On that path blocks and slots differ: batch_idx is 0, 1, 2, … (a `range` is never "
    "equal to a list) and need not be sent.",
    "generic": "On that path the kernel needs the rows of the batch, the blocks and the slots.",
}


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
    at = f"{place_of(place)} of {case.head_dim}"
    if owner is None:
        why = MASK if case.is_whole else f"{PART} Everything that is not named stays as it is."
        raise BrokenContract(
            f"only the named slots are written: {case}, the {noun} in {at}, was {was:.3f} and is "
            f"{there:.3f} now, expected no change. {why}"
        )
    is_untouched = there == was
    told, told_wanted = beside(there, wanted)
    found = " (nothing was written)" if is_untouched else whose(there, {noun: new})
    elsewhere = ((pool == wanted) & (before != wanted)).nonzero().tolist()
    went = f" (it went to {place_of(elsewhere[0])})" if elsewhere else ""
    raise BrokenContract(
        f"each named request's {noun} is in its slot: {case}, the {noun} of request {owner} in {at}, is "
        f"{told}{found}, expected {told_wanted}{went}. {ENTRIES}{SLOTS_FIRST if case.slots_first else ''}"
    )


MASK = (
    "Past a head's last number comes the next slot: a mask keeps a block of numbers inside of the head. "
    "A request that is not named stays as it is."
)
ENTRIES = (
    "The i-th of batch_idx, block_idx and pos belong together; keys and values have strides of their own."
)
KEPT = "Hand out a kept tensor only for a list that equals its own."
SLOTS_FIRST = " In this pool's memory a slot's heads lie side by side: take every stride from the tensor."


def whose(number: float, new: Mapping[str, Tensor]) -> str:
    """Which of the new numbers [B, H, D], by what they are, was found, in brackets; empty if it is none."""
    for noun, tensor in new.items():
        for row, head, d in (tensor == number).nonzero().tolist():
            return f" (number {d} of the {noun} of row {row}, head {head})"
    return ""


def place_of(index: Sequence[int], slot_name: str = "slot") -> str:
    """Where a number of a pool [L, N, H, block_size, D] is, in words; the layer if it is not LAYER."""
    layer_idx, block, head, slot, d = index
    where = f"layer {layer_idx - LAYER:+}, " if layer_idx != LAYER else ""
    return f"{where}{slot_name} {slot} of block {block}, head {head}, number {d}"


def _written_twice(run: KernelRun) -> tuple[int, Program, Program] | None:
    """The first number that two programs of a launch write, and which."""
    for tensor in run.layouts:
        writers: dict[int, Program] = {}
        for offset, kind, program in run.touched(tensor):
            if kind == WRITE and writers.setdefault(offset, program) != program:
                return offset, writers[offset], program
    return None


def _is_index(run: KernelRun, stray: Stray) -> bool:
    return len(run.layouts[stray.tensor].shape) == 1


def _told(run: KernelRun, stray: Stray, case: Case) -> BrokenContract:
    """An access that met no element of its tensor, as a sentence."""
    tensor = f"{stray.tensor}, {list(run.layouts[stray.tensor].shape)}"
    return BrokenContract(
        f"a kernel touches the elements of its tensors and nothing else: {case}, program {stray.program} of "
        f"{run.kernel} {stray.kind}s {stray.offset:,} numbers from the first of {tensor}, where no element "
        f"of it is; the grid is {run.grid}. {ONE_EACH if _is_index(run, stray) else LANES}"
    )


ONE_EACH = "The grid's first axis has a program for each entry of an index tensor, and no more."
LANES = (
    "A mask stops the lanes past a head's end, of a load as of a store; and each index goes with its own "
    "stride. So does each axis of the grid: the first is for requests, the second for heads."
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
        # An index that is out of date could lead anywhere: nothing outside is touched.
        with record_accesses() if device.type == "cpu" else nullcontext(), LaunchRecorder() as seen:
            path = kv_write.write(k_layer, v_layer, new[0], new[1], *case.indices)
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


# --- far away -------------------------------------------------------------------------------------------


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
