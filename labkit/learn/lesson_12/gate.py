"""Lesson 12: tokens that are drawn without a sort."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from labkit.engine import SamplingParams
from labkit.engine.step.samplers import DrawFunction
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.schedule import GREEDY
from labkit.learn.lesson_12.cases import (
    FILTERED,
    NOBODYS,
    SUM_OF_SIX,
    UNFILTERED,
    WHOLE_VOCABULARY,
    Batch,
    Case,
)
from labkit.watch.operators import OperatorMode, tensors_of

DRAWING = replace(GREEDY, temperature=0.8, seed=3)
SAMPLINGS: tuple[SamplingParams, ...] = (
    GREEDY,
    DRAWING,
    replace(DRAWING, top_k=5, seed=2**40),
    GREEDY,
    replace(DRAWING, temperature=1.2, top_p=0.9),
    replace(DRAWING, temperature=1.5, top_k=20, top_p=0.8, seed=-1),
)
SORTS = ("sort", "argsort", "msort", "topk", "kthvalue", "unique", "_unique", "unique_dim", "median", "mode")
READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")
HANDED_OUT = ("tolist", "numpy", "__array__", "cpu")  # methods that no operator is dispatched for on a CPU
LARGEST = 16  # numbers of one operator per logit; a search may try some guesses at once
MOST_UNFILTERED = 150  # operators of a batch in which nothing is searched for; a search has hundreds


class Operators(OperatorMode):
    """The operators that a sampler asks for, by name: how many, those that must not be, and how many numbers
    the largest one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.largest = 0
        self.sorting: list[str] = []
        self.reading: list[str] = []

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        name = func.overloadpacket.__name__
        self.count += 1
        self.largest = max(self.largest, *(made.numel() for made in tensors_of(out)), 0)
        if name.removesuffix("_") in SORTS or name.removesuffix("2") in SORTS:
            self.sorting.append(name)
        if name in READS or (name in ("index", "index_put_", "index_put") and chooses_rows(*args)):
            self.reading.append(name)


class HandedOut(TorchFunctionMode):
    """The methods called inside the block that give a tensor's numbers to the host, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if getattr(func, "__name__", "") in HANDED_OUT:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def chooses_rows(indexed: Tensor, indices: Sequence[Tensor | None], values: Tensor | None = None, *_) -> bool:
    """Whether an index picks as many numbers as a mask has places: on a GPU the host waits to know."""
    is_mask = any(index is not None and index.dtype == torch.bool for index in indices)
    return is_mask and (values is None or values.numel() > 1)


def sampler_of(build: Build) -> tuple[DrawFunction, torch.device]:
    """The sampler of an engine, and the device that it draws on."""
    engine = build(small_model(), dtype=torch.float32)
    step = engine.decode_step.device_step
    step = getattr(step, "device_step", step)  # of a captured one, what was captured
    return step.sampler.draw, engine.kv_manager.k_cache.device


def rows_are_drawn(build: Build) -> None:
    """Raise BrokenContract if a case's rows are not drawn as on the rung below."""
    draw, device = sampler_of(build)
    for case in (*UNFILTERED, *FILTERED):
        check_case(case, draw, device)


def check_case(case: Case, draw: DrawFunction, device: torch.device | str) -> None:
    """Raise BrokenContract if a sampler draws other tokens in a case, or leaves slots otherwise."""
    batch = case.batch(device)
    before, numbers, expected = batch.state.draws.clone(), batch.numbers.tolist(), batch.drawn()
    logits = batch.logits.clone()
    batch.give(draw)
    pairs = zip(batch.token_ids.tolist(), expected.tolist(), strict=True)
    for row, (token_id, wanted) in enumerate(pairs):
        if token_id != wanted:
            raise BrokenContract(
                f"{case.contract}: row {row} of {len(numbers)} is token {token_id}, expected {wanted}. "
                f"{case.hint} The row: {batch.rows[row]}; its random number is {numbers[row]:.4f}."
            )
    slots = batch.slot_mapping
    last = torch.full_like(batch.last_token_ids, NOBODYS).index_copy(0, slots, expected.clamp(min=0))
    check_slots("last_token_ids", batch, batch.last_token_ids, last)
    draws = before.index_add(0, slots, torch.ones_like(slots))  # one more random number for each row
    check_slots("draws", batch, counted_where_free(batch, before), draws)
    if not torch.equal(batch.logits.nan_to_num(), logits.nan_to_num()):
        raise BrokenContract(
            "logits are only read, but the call has changed them. Write into a copy, as `scores` is one."
        )


def counted_where_free(batch: Batch, before: Tensor) -> Tensor:
    """The slots' draws after the step, as if rows that drew nothing were counted: they may be or not."""
    slots, draws = batch.slot_mapping, batch.state.draws.clone()
    drew_nothing = (batch.of_rows.temperatures == 0) | (batch.token_ids < 0)
    is_as_before = draws[slots] == before[slots]
    draws[slots] += (drew_nothing & is_as_before).long()
    return draws


def check_slots(name: str, batch: Batch, there: Tensor, expected: Tensor) -> None:
    """Raise BrokenContract if a slot holds another number than expected."""
    row_of = {slot: row for row, slot in enumerate(batch.slot_mapping.tolist())}
    for slot in (there != expected).nonzero()[:, 0].tolist():
        whose = f"row {row_of[slot]}" if slot in row_of else "no row of the batch"
        raise BrokenContract(
            f"a slot is what its row made of it: {name}[{slot}], of {whose}, is {there[slot].item()} after "
            f"the step, expected {expected[slot].item()}. The slot that slot_mapping names has its row's "
            "token, and counts one random number more if the row draws; no other slot is written to."
        )


def nothing_is_sorted(build: Build) -> None:
    """Raise BrokenContract for an operator that sorts, that the host must wait for, or that compares each
    token with each, and for a search in a batch that has no filter."""
    draw, device = sampler_of(build)
    for case in (FILTERED[-1], UNFILTERED[0]):
        batch = Batch.of(case.rows, case.is_filtered, device)
        with HandedOut() as handed_out, Operators() as seen:
            batch.give(draw)
        reading = seen.reading + handed_out.names
        if seen.sorting:
            raise BrokenContract(
                f"nothing is sorted: the sampler asked for `{seen.sorting[0]}` "
                f"({len(seen.sorting)} times in a {'filtered' if case.is_filtered else 'plain'} batch), "
                "expected no sort and no top-k operator. The tokens are right; now find them without a sort."
            )
        if reading:
            raise BrokenContract(
                f"the host reads nothing: the sampler asked for `{reading[0]}`, for which the host "
                "waits for the GPU, and a CUDA graph cannot hold it. No `.item()`, no `if` about a tensor, "
                "no `.tolist()`, no `x[mask]`: compute for all rows, and choose by `torch.where`."
            )
        if seen.largest > LARGEST * (num_logits := sum(len(row.logits) for row in case.rows)):
            raise BrokenContract(
                f"a token is not compared with every other: for {num_logits:,} logits one operator makes "
                f"{seen.largest:,} numbers. With GPT-2's 50,257 tokens that would be billions per row. A "
                "guess of the cut is compared with each token once."
            )
    if seen.count > MOST_UNFILTERED:
        raise BrokenContract(
            f"without a filter nothing is searched for: a batch in which rows only have a temperature took "
            f"{seen.count} operators, expected at most {MOST_UNFILTERED}. `is_filtered` says whether any row "
            "has top-k or top-p."
        )


def many_ties_are_cut(build: Build) -> None:
    """Raise BrokenContract if rows of many equal scores are not drawn as they should be.

    After `nothing_is_sorted`, because a sort need not keep their order, and a sampler that compares every
    token with every other would need a machine's whole memory here.
    """
    draw, device = sampler_of(build)
    if device.type == "cpu":  # elsewhere a probability's last bit may be another
        check_case(SUM_OF_SIX, draw, device)
    check_case(WHOLE_VOCABULARY, draw, device)


GATE = Gate(
    ("sampler",),
    LADDER["11"].options,
    samplings=SAMPLINGS,
    trials=(rows_are_drawn, nothing_is_sorted, many_ties_are_cut),
)
