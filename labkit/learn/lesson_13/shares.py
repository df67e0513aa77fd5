"""Lesson 13: attention in equal shares."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from labkit.kernels.attention_shares import MAX_SHARES, SharePlan, plan_shares_plain
from labkit.kernels.split_attention import num_splits
from labkit.learn.answers import plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.steps import noted

# --- how decode attention's work is cut into shares, on paper, and who has most of it ------------------

NUM_HEADS, HEAD_DIM = 12, 64  # of GPT-2
ONE_LONG = (100,) * 31 + (900,)  # tokens of the rows: half of a batch of 64, as the lanes of rung 11 have it

Shares = Callable[[Sequence[int], int], Sequence[int]]


def plan_for(num_rows: int) -> SharePlan:
    """A plan for so many rows of GPT-2 in half precision, without boxes, not made yet."""
    return SharePlan(num_rows, NUM_HEADS, HEAD_DIM, torch.float16, torch.device("cpu"))


def pieces_of(lengths: Sequence[int]) -> list[int]:
    """The pieces of rows of so many tokens, as the programs of rung 13 read them where there are no boxes."""
    piece = plan_for(len(lengths)).reading(len(lengths)).tokens
    return [-(-length // piece) for length in lengths]


def at_once(num_rows: int) -> int:
    """Shares of which all programs run at the same time, in a batch of so many rows of GPT-2."""
    return plan_for(num_rows).limits(num_rows)[0]


def as_many_each(pieces: Sequence[int], most: int) -> list[int]:
    """The rung below: every row has as many programs as every other, however long it is."""
    splits = min(MAX_SHARES, max(1, most // len(pieces)), max(1, *pieces))
    return [splits] * len(pieces)


def of_rung_12(lengths: Sequence[int]) -> list[int]:
    """Programs per row and head that rung 12 launches for rows of so many tokens."""
    return [num_splits(len(lengths), NUM_HEADS, max(lengths))] * len(lengths)


def of_rung_13(lengths: Sequence[int]) -> list[int]:
    """Shares per row in the plan of rung 13: `plan_shares_plain` for GPT-2 in half precision."""
    plan = plan_for(len(lengths))
    plan_shares_plain(torch.tensor(lengths, dtype=torch.int32), torch.arange(len(lengths)), plan)
    return plan.num_shares.tolist()


def largest(pieces: Sequence[int], shares: Sequence[int]) -> int:
    """Pieces of the largest share, if rows of so many pieces are cut into so many shares."""
    return max(-(-n // count) for n, count in zip(pieces, shares, strict=True))


# --- the reader's ------------------------------------------------------------------------------------------

CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((4, 4), 4),
    ((9, 1), 4),
    ((7, 2, 2), 5),
    ((1, 1, 1), 9),
    ((29, *(4,) * 31), 88),
    ((0, 6), 3),
)
HINT = (
    "All shares have one size, except that the last one of a request has only what is left. Find the "
    "smallest size with which there are no more shares than run at once."
)


def smallest_size(pieces: Sequence[int], most: int) -> int:
    """The smallest share with which rows of so many pieces have no more than `most` shares."""
    size = 1
    while sum(max(1, -(-n // size)) for n in pieces) > most:
        size += 1
    return size


def check_shares(shares: Shares) -> Report:
    """Whether a function cuts rows into shares as it should: the first contract that it breaks, if any."""
    trials = [partial(check_case, shares, *case) for case in CASES]
    report = proven("shares", trials, f"{len(CASES)} batches in shares that are as small as can be.")
    return noted(report, "13", "shares", shares)


def check_case(shares: Shares, pieces: tuple[int, ...], most: int) -> None:
    """Raise BrokenContract unless rows of so many pieces are cut into shares that are as small as can be."""
    about = f"requests of {list(pieces)} pieces, {most} shares at once"
    counts = list(plain(shares(list(pieces), most)))
    if len(counts) != len(pieces) or min(counts) < 1:
        raise BrokenContract(
            "each request has a share, also one without tokens, because its program writes the new token: "
            f"with {about}, there are {counts}, expected {len(pieces)} numbers from 1 on."
        )
    if sum(counts) > most:
        raise BrokenContract(
            f"all shares run at once: with {about}, there are {sum(counts)}. Some would have to wait until "
            f"others end. {HINT}"
        )
    size = smallest_size(pieces, most)
    if (there := largest(pieces, counts)) > size:
        raise BrokenContract(
            f"nobody waits for a large share: with {about}, {counts} makes the largest share {there} "
            f"pieces, expected {size}. {HINT}"
        )
    if counts != (expected := [max(1, -(-n // size)) for n in pieces]):
        raise BrokenContract(
            f"no share is cut smaller than the largest: with {about}, there are {counts}, expected "
            f"{expected}. More shares have more results to put together. {HINT}"
        )
