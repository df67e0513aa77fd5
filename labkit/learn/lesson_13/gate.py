"""Lesson 13: prompts in chunks without pads, beside the decode steps, with the padded batch's tokens; and
attention in equal shares."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from random import Random
from typing import Any

import torch

from labkit.engine import CacheConfig
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.packed_prefill import MakeChunk
from labkit.kernels.attention_shares import SharePlan, plan_shares_plain
from labkit.kernels.split_attention import num_splits
from labkit.ladder import LADDER
from labkit.learn.answers import plain
from labkit.learn.exercise import NUM_DRAWN, BrokenContract, Exercise, answer_of
from labkit.learn.gates.gate import Build, Gate, Report, proven, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.lesson_13.chunks import InRows
from labkit.learn.steps import check_calls, noted

BUDGETS = {"prefill_max_tokens": 7, "prefill_chunk_tokens": 4}  # so that most prompts go on in a next chunk

Prompts = Sequence[Sequence[int]]

A, B, C = (11, 12, 13, 14, 15), (21, 22, 23), (31, 32, 33, 34)
CASES = (  # prompts, how many of their tokens are computed, and the room of the next chunk
    ((A,), (0,), 16),
    ((A, B), (0, 0), 16),
    ((A,), (0,), 3),
    ((A,), (3,), 3),
    ((A, B, C), (0, 0, 0), 7),
)
ROWS = (  # what each row has, what it is called, the contract, and how to keep it
    (
        "token_ids",
        "token",
        "every prompt token is computed once, in order",
        "Take the tokens of prompt p from num_computed[p] on, right after those of prompt p - 1.",
    ),
    (
        "positions",
        "position",
        "positions go on from chunk to chunk, each prompt's its own",
        "A token's position is its place in its prompt, so the first one here is num_computed[p].",
    ),
)


# --- steps 1 and 2: chunks ---------------------------------------------------------------------------------


def checked_chunk(make_chunk: MakeChunk, prompts: Prompts, num_computed: Sequence[int], room: int) -> Any:
    """The chunk that is made of these prompts. Raises BrokenContract if it is not what it should be."""
    given = {"prompts": [tuple(ids) for ids in prompts], "num_computed": list(num_computed)}
    chunk = answer_of(make_chunk, **given, max_tokens=room)
    about = (
        f"prompts of {[len(ids) for ids in prompts]} tokens, of which {list(num_computed)} are computed, and "
        f"room for {room}"
    )
    right = PackedChunk(prompts, num_computed, room)
    starts = list(plain(chunk.starts))
    if starts != right.starts:
        hint = hint_on_rows(chunk, right, prompts, room)
        if starts[-1] > room:
            raise BrokenContract(
                f"no chunk is above its budget: with {about}, it has {starts[-1]} tokens. The decode step "
                f"beside it waits for all of them. {hint}"
            )
        raise BrokenContract(
            f"each prompt gets its rows, first come, first served: with {about}, starts is {starts}, "
            f"expected {right.starts}. {hint}"
        )
    for name, noun, contract, hint in ROWS:
        for row, pair in enumerate(zip_longest(plain(getattr(chunk, name)), getattr(right, name))):
            if pair[0] != pair[1]:
                found, expected = (f"no {noun}" if number is None else f"{noun} {number}" for number in pair)
                raise BrokenContract(
                    f"{contract}: with {about}, row {row} has {found}, expected {expected}. {hint}"
                )
    return chunk


def hint_on_rows(chunk: InRows, right: PackedChunk, prompts: Prompts, room: int) -> str:
    """How each prompt gets its rows, by the method that is at fault."""
    num_left = [len(ids) - done for ids, done in zip(prompts, right.context_lens, strict=True)]
    counts = list(chunk.share_out(num_left, room))
    if counts == [end - first for first, end in pairwise(right.starts)]:
        return (
            f"`pack` was asked for {counts}: make that many rows of each prompt, and after each prompt "
            "append the number of rows so far to `starts`."
        )
    return (
        f"`share_out` gave {counts}: the oldest prompt gets all that it has left, then the next one, until "
        "the chunk is full."
    )


def chunks_are_right(build: Build) -> None:
    """Raise BrokenContract for the first case whose chunk is not what it should be."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(4, 32, prefix_cache=False))
    for case in CASES:
        checked_chunk(engine.prefill.make_chunk, *case)


GATE = Gate(
    ("batching",),
    LADDER["12"].options,
    samplings=MIXED,
    trials=(chunks_are_right,),
    prompt_budgets=BUDGETS,
)

# --- how decode attention's work is cut into shares, on paper, and who has most of it ----------------------

NUM_HEADS, HEAD_DIM = 12, 64  # of GPT-2
ONE_LONG = (100,) * 31 + (900,)  # tokens of the rows: half of a batch of 64, as the lanes of rung 11 have it


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
    return [most // len(pieces)] * len(pieces)


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


# --- step 3: shares ----------------------------------------------------------------------------------------


def equal_shares(pieces: Sequence[int], at_once: int) -> list[int]:
    """The shares of each request, of the smallest size with which there are no more than run at once."""
    size = 1
    while sum(max(1, -(-n // size)) for n in pieces) > at_once:
        size += 1
    return [max(1, -(-n // size)) for n in pieces]


def draw_pieces(rng: Random) -> dict[str, object]:
    """Draw arguments of `equal_shares`: alike or not, and some requests without a token."""
    pieces = [rng.choice([0, 1, 2, 4, 9, 29]) for _ in range(rng.randint(2, 5))]
    return {"pieces": pieces, "at_once": rng.randint(len(pieces), 4 * len(pieces))}


SHARES = Exercise(
    solution=equal_shares,
    draw=draw_pieces,
    contract="all shares run at once, nobody waits for a large share, and there are no more than that needs",
)
HINT = (
    "All shares have one size, except that the last one of a request has only what is left. Find the "
    "smallest size with which there are no more shares than run at once. Each request has a share, also one "
    "without tokens, because its program writes the new token."
)


def check_shares(shares: Callable[[Sequence[int], int], Sequence[int]]) -> Report:
    """Whether a function cuts rows into shares as it should."""
    trial = partial(check_calls, SHARES, HINT, shares)
    return noted(proven("shares", [trial], f"{NUM_DRAWN} random batches."), "13", "shares", shares)
