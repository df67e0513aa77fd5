"""Lesson 12: tokens that are drawn without a sort."""

import torch
from torch._ops import OpOverload

from labkit.engine.step.samplers import DrawFunction
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.lesson_12.cases import CASES, MANY_TIES, NUMBERS_EACH, Batch, Case
from labkit.watch.operators import OperatorMode

SORTS = ("sort", "argsort", "msort", "topk", "kthvalue", "unique", "_unique", "unique_dim", "median", "mode")
READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")


class Operators(OperatorMode):
    """The operators that a sampler asks for and must not, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.sorting: list[str] = []
        self.reading: list[str] = []

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        name = func.overloadpacket.__name__
        if name.removesuffix("_") in SORTS or name.removesuffix("2") in SORTS:
            self.sorting.append(name)
        is_by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or is_by_mask:  # by a mask, the host waits to know how many there are
            self.reading.append(name)


def sampler_of(build: Build) -> tuple[DrawFunction, torch.device]:
    """The sampler of an engine, and the device that it draws on."""
    engine = build(small_model(), dtype=torch.float32)
    step = engine.decode_step.device_step
    step = getattr(step, "device_step", step)  # of a captured one, what was captured
    return step.sampler.draw, engine.kv_manager.k_cache.device


def rows_are_drawn(build: Build) -> None:
    """Raise BrokenContract if a case's rows are not drawn as on the rung below."""
    for case in CASES:
        check_case(case, *sampler_of(build))


def check_case(case: Case, draw: DrawFunction, device: torch.device) -> None:
    """Raise BrokenContract if a sampler draws other tokens in a case, or changes the logits."""
    batch = Batch.of(case.rows * NUMBERS_EACH, device)
    numbers, expected, logits = batch.numbers.tolist(), batch.drawn(), batch.logits.clone()
    batch.give(draw)
    pairs = zip(batch.token_ids.tolist(), expected.tolist(), strict=True)
    for row, (token_id, wanted) in enumerate(pairs):
        if token_id != wanted:
            raise BrokenContract(
                f"{case.contract}: row {row} of {len(numbers)} is token {token_id}, expected {wanted}. "
                f"{case.hint} The row: {batch.rows[row]}; its random number is {numbers[row]:.4f}."
            )
    if not torch.equal(batch.logits.nan_to_num(), logits.nan_to_num()):
        raise BrokenContract(
            "logits are only read, but the call has changed them. Write into a copy, as `scores` is one."
        )


def nothing_is_sorted(build: Build) -> None:
    """Raise BrokenContract for an operator that sorts, or that the host must wait for."""
    draw, device = sampler_of(build)
    with Operators() as seen:
        Batch.of(CASES[-1].rows, device).give(draw)
    if seen.sorting:
        raise BrokenContract(
            f"nothing is sorted: the sampler asked for `{seen.sorting[0]}` ({len(seen.sorting)} times in a "
            "filtered batch), expected no sort and no top-k operator. The tokens are right; now find them "
            "without a sort."
        )
    if seen.reading:
        raise BrokenContract(
            f"the host reads nothing: the sampler asked for `{seen.reading[0]}`, for which the host waits "
            "for the GPU, and a CUDA graph cannot hold it. No `.item()`, no `if` about a tensor, no "
            "`.tolist()`, no `x[mask]`: compute for all rows, and choose by `torch.where`."
        )


def many_ties_are_cut(build: Build) -> None:
    """Raise BrokenContract if rows of many equal scores are not drawn as they should be: after a sort, which
    need not keep their order, is refused."""
    draw, device = sampler_of(build)
    if device.type == "cpu":  # elsewhere a probability's last bit may be another
        check_case(MANY_TIES, draw, device)


GATE = Gate(
    ("sampler",),
    LADDER["11"].options,
    samplings=MIXED,
    trials=(rows_are_drawn, nothing_is_sorted, many_ties_are_cut),
)
