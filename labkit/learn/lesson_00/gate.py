"""Lesson 00: attention over a paged cache."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from labkit.engine.step.host import DecodeStep
from labkit.kernels import PagedAttentionFunction
from labkit.ladder import LADDER
from labkit.learn.answers import beside
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, raised, small_model
from labkit.learn.lesson_00.probe import (
    BLOCK_SIZE,
    CONTEXT_LENS,
    HEAD_DIM,
    NUM_SLOTS,
    SUSPECTS,
    TABLES,
    Probe,
    by_hand,
    make_probe,
    place_of,
    slots_of,
    token_in,
)

TOLERANCE = 1e-4  # of a weight: a sum in another order is right, too
NEAR = 0.005  # of a weight: what a result in 16 bits is off by
LARGE = 10_000  # times the query: exp() of a score is infinite, and a mask of -10,000 is above others
LONG = 200  # tokens of a long text: more than a buffer or a window that somebody takes for enough


# --- trials --------------------------------------------------------------------------------------------


def reads_its_own_tokens(build: Build) -> None:
    """Attention of three requests over a cache in which every weight can be read from the result."""
    attention, probe = part_of(build)
    out, expected = called(attention, probe), by_hand(probe)
    wrong = first_wrong(out, expected)
    if wrong is None:
        return
    for told, attend in SUSPECTS.items():
        if first_wrong(out, attend(probe)) is None:
            raise BrokenContract(told)
    b, h = wrong
    raise BrokenContract(next(complaints(b, h, out[b, h], expected[b, h])))


def takes_any_shape(build: Build) -> None:
    """The same tokens in blocks of another size, and a long text alone."""
    attention, probe = part_of(build)
    halved = probe.in_half_blocks()
    said = (
        "the block size is the cache's: it is `k_cache_layer.shape[2]`, which is 64 by default, and "
        f"not always {BLOCK_SIZE}: with the same tokens in blocks of {BLOCK_SIZE // 2} slots "
    )
    try:
        out = called(attention, halved)
    except IndexError as error:
        raise BrokenContract(f"{said}it {raised(error)}.") from error
    if wrong := first_wrong(out, by_hand(halved)):
        raise BrokenContract(f"{said}the result of request {wrong[0]}, head {wrong[1]}, is another.")
    long = probe.of_a_long_text(LONG)  # of one request
    if wrong := first_wrong(called(attention, long), by_hand(long)):
        raise BrokenContract(
            f"a text may be long: with {LONG} tokens in the cache the result of head {wrong[1]} differs. "
            "Every token takes part, from position 0 on."
        )


def ignores_empty_slots(build: Build) -> None:
    """The same with NaN in all slots that hold no token."""
    attention, probe = part_of(build)
    if wrong := first_wrong(called(attention, probe.with_nan()), by_hand(probe)):
        b, h = wrong
        raise BrokenContract(
            f"a slot without a token may hold anything: request {b}, head {h}: with NaN in the empty slots "
            "the result differs. A weight of 0 is not enough, because 0 times NaN is NaN: leave such "
            "values out, or put 0 in their place."
        )


def survives_large_scores(build: Build) -> None:
    """The same with scores so large that exp() of them is infinite, and all so far below 0 that it is 0."""
    attention, probe = part_of(build)
    one_sign = {name: getattr(probe, name).abs() for name in ("query", "key_new", "k_cache_layer")}
    for sign, hint in (
        (1, "Subtract the text's largest score from all of them first: exp() of a large score is infinite."),
        (
            -1,
            "All of them are far below 0, and so is the largest, which is to be subtracted. A masked score "
            "must be below any other, which -inf alone is.",
        ),
    ):
        large = replace(probe, **one_sign | {"query": sign * LARGE * one_sign["query"]})
        out, expected = called(attention, large), by_hand(large)
        if wrong := first_wrong(out, expected):
            b, h = wrong
            mark = int(expected[b, h].argmax())
            raise BrokenContract(
                f"scores of any size are right: request {b}, head {h}: with scores {sign * LARGE:,} times as "
                f"large the largest weight is {out[b, h, mark]:.3f}, expected {expected[b, h, mark]:.3f}. "
                f"{hint}"
            )


def part_of(build: Build) -> tuple[PagedAttentionFunction, Probe]:
    """The reader's attention, and a probe where its engine computes."""
    engine = build(small_model(), dtype=torch.float32)
    assert isinstance(engine.decode_step, DecodeStep), "rung 00 keeps its state on the host"
    return engine.decode_step.attention, make_probe(engine.device)


def called(attention: PagedAttentionFunction, probe: Probe) -> Tensor:
    """The attention's result. Raises BrokenContract if it is no tensor as expected, or if an argument was
    changed."""
    given = probe.copy()
    with torch.inference_mode():
        out = attention(*vars(given).values())
    for name, before in vars(probe).items():
        if isinstance(before, Tensor) and not torch.allclose(
            getattr(given, name), before, rtol=0, atol=0, equal_nan=True
        ):
            raise BrokenContract(
                f"attention only reads: it changed its argument {name}. The engine appends the new keys and "
                "values later."
            )
    shape = tuple(probe.query.shape)
    if not isinstance(out, Tensor) or tuple(out.shape) != shape or out.dtype != probe.query.dtype:
        what = f"{list(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise BrokenContract(
            f"the result is like the query, [B, H, D], here {list(shape)} {probe.query.dtype}. It is {what}."
        )
    return out


def first_wrong(out: Tensor, expected: Tensor) -> tuple[int, int] | None:
    """The first request and head whose result differs; NaN differs from all."""
    wrong = ~((out - expected).abs() <= TOLERANCE).all(dim=2)
    return tuple(wrong.nonzero()[0].tolist()) if wrong.any() else None


# --- what is wrong ---------------------------------------------------------------------------------------


def complaints(b: int, h: int, found: Tensor, expected: Tensor) -> Iterator[str]:
    """What is wrong with the weights of a request and head, [D] each, the plainest first."""
    who = f"request {b}, head {h}"
    own, held = NUM_SLOTS + b, slots_of(b)
    strangers = [
        mark for mark in (found.abs() > TOLERANCE).nonzero()[:, 0].tolist() if mark not in (*held, own)
    ]
    if strangers:
        yield stranger(b, who, strangers, found)
    if found[own] == 0:
        yield (
            f"the new token sees itself: {who}: its own token has weight 0, expected {expected[own]:.3f}. "
            "Its key and value are not in the cache yet: they come as key_new and value_new."
        )
    for token, mark in enumerate(held):
        if found[mark] == 0:
            yield (
                f"every token of the text takes part: {who}: token {token} ({place_of(mark)}) has weight 0, "
                f"expected {expected[mark]:.3f}. A text of {len(held)} tokens has the positions 0 to "
                f"{len(held) - 1}. A block is [H, block_size, D]: its heads come before its slots."
            )
    mark = int((found - expected).abs().argmax())
    token = "its own token" if mark == own else f"token {held.index(mark)} ({place_of(mark)})"
    weight = "{} has weight {}, expected {}".format(token, *beside(float(found[mark]), float(expected[mark])))
    if abs(found[mark] - expected[mark]) < NEAR:
        yield (
            f"attention computes in float32, as the query comes: {who}: {weight}. That is near, so look for "
            "a tensor of 16 bits."
        )
    if abs(found.sum() - 1) > TOLERANCE:
        yield (
            f"weights are a softmax, they add up to 1: {who}: they add up to {found.sum():.3f}. Divide by "
            "the sum over this request's tokens. What is masked has the score -inf before the softmax, so "
            "that it adds nothing to the sum."
        )
    yield (
        f"a weight is the softmax of query · key / √D: {who}: {weight}. D is the size of a head, "
        f"{HEAD_DIM} here. Weight i is that of key i of the same head, and goes with value i."
    )


def stranger(b: int, who: str, strangers: list[int], found: Tensor) -> str:
    """A slot that a request has no business with, and the contract that says so."""
    mark = strangers[0]
    if mark >= NUM_SLOTS:
        return (
            f"the new token sees itself: {who}: {place_of(mark)} has weight {found[mark]:.3f}, expected 0. "
            f"Row {b} of key_new and value_new is request {b}'s."
        )
    has = f"{place_of(mark)}, which holds {token_in(mark)}, has weight {found[mark]:.3f}, expected 0."
    if mark // BLOCK_SIZE in TABLES[b]:
        return (
            f"a text ends at its context length: {who}: {has} Request {b} has {CONTEXT_LENS[b]} tokens in "
            f"the cache, positions 0 to {CONTEXT_LENS[b] - 1}; the rest of its last block holds none of them."
        )
    if all(abs(found[slot]) > TOLERANCE for slot in slots_of(b)):
        return (
            f"a text ends at its context length: {who}: {has} Its text is shorter than the longest one. "
            "After its last block, its row of the table has padding, and 0 is a block like any other."
        )
    return (
        f"a token is read from the block that its request's row of the table names: {who}: {has} Row {b} of "
        f"the table begins with {list(TABLES[b])}: position 0 is in slot 0 of block {TABLES[b][0]}."
    )


GATE = Gate(
    ("attention",),
    LADDER["00"].options,
    trials=(reads_its_own_tokens, takes_any_shape, ignores_empty_slots, survives_large_scores),
    below_name="the plain engine",
)
