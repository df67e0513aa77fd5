"""Lesson 12: tokens that are drawn without a sort."""

import math
from typing import NamedTuple

import torch

from labkit.engine.step.samplers import DrawFunction
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.lesson_08.graphs import is_host_read
from labkit.learn.lesson_12.samplers import Batch, Row
from labkit.watch import LaunchRecorder, device_step_of

# --- rows of logits on which a wrong sampler shows -------------------------------------------------------

NUMBERS_EACH = 12  # random numbers that each kind of row is drawn with


class Case(NamedTuple):
    """Rows of one vocabulary, each drawn with several random numbers, their contract, and a hint."""

    contract: str
    rows: tuple[Row, ...]
    hint: str


STEPS = (0.5, -1.0, 2.0, 1.0, 0.0)  # logits that are all different
BELOW_MINUS_1 = -1.0 - 2.0**-23  # the float32 next to -1
NEVER = -200.0  # a logit whose probability is 0
AT_THE_LIMIT = "a sum that is 1 - p itself may go"
ROUNDED_ONCE = (
    "The limit is `(1 - top_ps).float()`. Add the weights in float64, and round the sum once, by `.float()`, "
    "before it is compared."
)
UNEQUAL = tuple(math.log(share) for share in (0.3, 0.15, 0.5, 0.05))
CASES = (
    Case(
        "a row draws with its own random number",
        (Row(STEPS, temperature=1.0), Row((0.0, 0.0, 0.0, 0.0, 0.0), temperature=0.7)),
        "It draws the first token whose cumulated probability is above the number: count those that are not. "
        "Write the token into token_ids, in place.",
    ),
    Case(
        "a row that does not draw keeps its token",
        (Row((2.0, 0.5, 2.0, 1.0, 2.0)), Row((4.0, 3.9, 3.8, 3.7, 3.6), temperature=1.0)),
        "At temperature 0 token_ids already has the likeliest token: `torch.where` chooses per row.",
    ),
    Case(
        "a row without finite logits has no token, and changes no other row",
        (
            Row(STEPS, temperature=1.0),
            Row((0.5, math.nan, 2.0, 1.0, 0.0), temperature=1.0),
            Row((0.5, math.inf, 2.0, 1.0, 0.0), temperature=1.0),
        ),
        "Its token_ids is -1 when you get it, and must stay -1.",
    ),
    Case(
        "top-k keeps the k of largest score",
        (
            *(Row(STEPS, 1.5, top_k=k) for k in (3, 1, 4)),
            Row((BELOW_MINUS_1, 0.0, -1.0, -3.0, -4.0), 1.0, top_k=2),
            Row((0.0, -1.0, BELOW_MINUS_1, -3.0, -4.0), 1.0, top_k=2),
        ),
        "The cut is the k-th largest: V - k are smaller. Look at the limit, at whether the weight must be "
        "above it, and at what is returned: when nothing is left to halve, the cut is `high`.",
    ),
    Case(
        "a tie with the k-th is kept",
        (Row((0.0, 1.0, 1.0, 1.0, 2.0), 2.0, top_k=2), Row((3.0, 3.0, 3.0, 3.0, 3.0), 1.0, top_k=1)),
        "Drop the scores below the cut, not everything after the first k in some order.",
    ),
    Case(
        "the token that crosses p is kept",
        tuple(Row(UNEQUAL, 1.0, top_p=p) for p in (0.6, 0.9, 0.01)),
        "Drop tokens, the least likely first, as long as all dropped ones together have no more than 1 - p.",
    ),
    Case(
        "at the top-p cut the less likely token goes first, and of equal ones the lower id",
        (
            Row((1.0,) * 8, 1.0, top_p=0.5),
            Row((0.0, 2.0, 2.0, 2.0, 0.0, 2.0, 2.0, 0.0), 1.0, top_p=0.6),
            Row((-1.0, BELOW_MINUS_1, 0.0, *[NEVER] * 5), 1.0, top_p=0.7),
            Row((BELOW_MINUS_1, -1.0, 0.0, *[NEVER] * 5), 1.0, top_p=0.7),
        ),
        "No two keys may be equal, and the id may count only among equal scores: multiply the score's key by "
        "V, and then add the id.",
    ),
    Case(
        AT_THE_LIMIT,
        (Row((0.0,) * 6, 1.0, top_p=0.5), Row((*[0.0] * 5, NEVER), 1.0, top_p=0.8)),
        ROUNDED_ONCE,
    ),
)
MANY_TIES = Case(  # a sort need not keep their order
    AT_THE_LIMIT, (Row((0.0,) * 60, 1.0, top_p=0.9),), f"Six of the 60 equal tokens go. {ROUNDED_ONCE}"
)

# --- what is asked of a sampler --------------------------------------------------------------------------

SORTS = ("sort", "argsort", "msort", "topk", "kthvalue", "unique", "_unique", "unique_dim", "median", "mode")


def sampler_of(build: Build) -> tuple[DrawFunction, torch.device]:
    """The sampler of an engine, and the device that it draws on."""
    engine = build(small_model(), dtype=torch.float32)
    return device_step_of(engine).sampler.draw, engine.device


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
    batch = Batch.of(MANY_TIES.rows, device)
    with LaunchRecorder() as seen:
        batch.give(draw)
    names = [launch.name.removeprefix("aten.") for launch in seen.launches]
    if sorting := [each for each in names if {each.removesuffix("_"), each.removesuffix("2")} & {*SORTS}]:
        raise BrokenContract(
            f"nothing is sorted: the sampler asked for `{sorting[0]}` ({len(sorting)} times in a "
            "filtered batch), expected no sort and no top-k operator. The tokens are right; now find them "
            "without a sort."
        )
    for name, launch in zip(names, seen.launches, strict=True):
        if is_host_read(launch):
            raise BrokenContract(
                f"the host reads nothing: the sampler asked for `{name}`, for which the host waits for the "
                "GPU, and a CUDA graph cannot hold it. No `.item()`, no `if` about a tensor, no `.tolist()`, "
                "no `x[mask]`: compute for all rows, and choose by `torch.where`."
            )


def many_ties_are_cut(build: Build) -> None:
    """Rows of many equal scores, whose order a sort need not keep, are cut where they should be."""
    draw, device = sampler_of(build)
    if device.type == "cpu":  # elsewhere a probability's last bit may be another
        check_case(MANY_TIES, draw, device)


GATE = Gate(
    ("sampler",),
    LADDER["11"].options,
    samplings=MIXED,
    trials=(rows_are_drawn, nothing_is_sorted, many_ties_are_cut),
)
