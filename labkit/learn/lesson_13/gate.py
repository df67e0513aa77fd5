"""Lesson 13: prompts in chunks without pads, beside the decode steps, with the padded batch's tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, zip_longest
from typing import Any

import torch

from labkit.engine import CacheConfig, InferenceEngine
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.packed_prefill import MakeChunk
from labkit.ladder import LADDER
from labkit.learn.answers import plain
from labkit.learn.exercise import BrokenContract, answer_of
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.schedule import Invariant
from labkit.learn.lesson_13.chunks import InRows
from labkit.watch.replaced import replaced

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
    if len(starts) != len(right.starts) or starts[0] != 0:
        raise BrokenContract(
            f"starts says where each prompt begins, and where the last one ends: with {about}, it is "
            f"{starts}, expected {len(right.starts)} numbers, the first of them 0: {right.starts}."
        )
    if starts != right.starts:
        num_left = [len(ids) - done for ids, done in zip(prompts, num_computed, strict=True)]
        hint = hint_on_rows(chunk, right, num_left, room)
        if starts[-1] > room:
            raise BrokenContract(
                f"no chunk is above its budget: with {about}, it has {starts[-1]} tokens. The decode step "
                f"beside it waits for all of them. {hint}"
            )
        counts, due = ([end - first for first, end in pairwise(each)] for each in (starts, right.starts))
        p = next(p for p, pair in enumerate(zip(counts, due, strict=True)) if len(set(pair)) > 1)
        raise BrokenContract(
            f"each prompt gets its rows, first come, first served: with {about}, prompt {p} has {counts[p]}, "
            f"expected {due[p]} (starts is {starts}, expected {right.starts}). {hint}"
        )
    for name, noun, contract, hint in ROWS:
        for row, pair in enumerate(zip_longest(plain(getattr(chunk, name)), getattr(right, name))):
            if pair[0] != pair[1]:
                found, expected = (f"no {noun}" if number is None else f"{noun} {number}" for number in pair)
                raise BrokenContract(
                    f"{contract}: with {about}, row {row} has {found}, expected {expected}. {hint}"
                )
    return chunk


def hint_on_rows(chunk: InRows, right: PackedChunk, num_left: Sequence[int], room: int) -> str:
    """How each prompt gets its rows, by the method that is at fault."""
    counts = list(chunk.share_out(list(num_left), room))
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


@contextmanager
def chunks_proven(engine: InferenceEngine) -> Iterator[tuple[Invariant, ...]]:
    """Inside the block, every chunk that the engine asks for is proven."""

    def making(inner: MakeChunk) -> MakeChunk:
        return lambda prompts, num_computed, room: checked_chunk(inner, prompts, num_computed, room)

    with replaced(engine.prefill, "make_chunk", making):
        yield ()


GATE = Gate(
    ("batching",),
    LADDER["12"].options,
    watches=(chunks_proven,),
    samplings=MIXED,
    trials=(chunks_are_right,),
    prompt_budgets=BUDGETS,
)
