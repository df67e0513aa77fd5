"""Lesson 00: attention over a paged cache."""

from typing import Any

import torch
from torch import Tensor

from labkit.kernels import PagedAttentionFunction
from labkit.ladder import LADDER
from labkit.learn.answers import beside
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.lesson_00.pieces import check_like, paged_attention

TOLERANCE = 1e-4  # of a weight: a sum in another order is right, too
LARGE = 10_000  # times the query: exp() of a score is infinite

# --- a cache whose values are marks, so that the result of an attention says what was read -------------

BLOCK_SIZE, NUM_BLOCKS = 4, 7
# By request: its blocks, and its tokens in the cache. Nobody holds blocks 2 and 6. The longest text ends
# within a block, so that its length is not the number of columns; the shortest fills its block.
TABLES = ((3, 5), (4, 1), (0,))
CONTEXT_LENS = (6, 7, 4)
ROW_LENGTH = 3  # of the block table; a row is padded with 0, which is request 2's block
NUM_HEADS, HEAD_DIM = 2, 32
NUM_SLOTS = NUM_BLOCKS * BLOCK_SIZE

Probe = dict[str, Any]  # the arguments of a paged attention, by name


def make_probe(device: torch.device) -> Probe:
    """What a paged attention is called with: the same random queries and keys each time. In each value a
    single number is 1, at a place of its own: first come the pool's slots, block by block, then each
    request's new token. So the attention of a request and head, [D], is a list of weights.
    """
    generator = torch.Generator().manual_seed(0)
    one_per_request = (len(TABLES), NUM_HEADS, HEAD_DIM)
    of_the_pool = (NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, HEAD_DIM)
    query, key_new = (torch.randn(one_per_request, generator=generator) for _ in range(2))
    keys = torch.randn(of_the_pool, generator=generator)
    marks = torch.eye(HEAD_DIM)
    values = marks[:NUM_SLOTS].view(NUM_BLOCKS, 1, BLOCK_SIZE, HEAD_DIM).expand(of_the_pool)
    value_new = marks[NUM_SLOTS : NUM_SLOTS + len(TABLES), None].expand(one_per_request)
    table = [[*row, *[0] * (ROW_LENGTH - len(row))] for row in TABLES]
    tensors = {
        "query": query,
        "key_new": key_new,
        "value_new": value_new.contiguous(),
        "k_cache_layer": keys,
        "v_cache_layer": values.contiguous(),
        "block_table": torch.tensor(table, dtype=torch.int32),
        "context_lens": torch.tensor(CONTEXT_LENS, dtype=torch.int32),
    }
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    return on_device | {"max_context_len": max(CONTEXT_LENS)}


def slots_of(b: int) -> list[int]:
    """The pool's slots that hold request b's tokens, in order."""
    slots = [block * BLOCK_SIZE + slot for block in TABLES[b] for slot in range(BLOCK_SIZE)]
    return slots[: CONTEXT_LENS[b]]


# --- trials --------------------------------------------------------------------------------------------


def reads_its_own_tokens(build: Build) -> None:
    """A trial: of three requests every weight can be read from the result, and is right."""
    attention, probe = part_of(build)
    out, expected = called(attention, probe), paged_attention()(**probe)
    if wrong := first_wrong(out, expected):
        raise BrokenContract(complaint(*wrong, out[wrong], expected[wrong]))


def ignores_empty_slots(build: Build) -> None:
    """A trial: the same with NaN in all slots that hold no token."""
    attention, probe = part_of(build)
    is_empty = torch.ones(NUM_SLOTS, dtype=torch.bool, device=probe["query"].device)
    for b in range(len(TABLES)):
        is_empty[slots_of(b)] = False
    for name in ("k_cache_layer", "v_cache_layer"):
        probe[name].masked_fill_(is_empty.view(NUM_BLOCKS, 1, BLOCK_SIZE, 1), torch.nan)
    if wrong := first_wrong(called(attention, probe), paged_attention()(**probe)):
        raise BrokenContract(
            f"a slot without a token may hold anything: request {wrong[0]}, head {wrong[1]}: with NaN in the "
            "empty slots the result differs. A weight of 0 is not enough, because 0 times NaN is NaN: leave "
            "such values out, or put 0 in their place."
        )


def survives_large_scores(build: Build) -> None:
    """A trial: the same with scores so large that exp() of them is infinite."""
    attention, probe = part_of(build)
    probe["query"] *= LARGE
    out, expected = called(attention, probe), paged_attention()(**probe)
    if wrong := first_wrong(out, expected):
        mark = int(expected[wrong].argmax())
        raise BrokenContract(
            f"scores of any size are right: request {wrong[0]}, head {wrong[1]}: with scores {LARGE:,} times "
            f"as large the largest weight is {out[wrong][mark]:.3f}, expected {expected[wrong][mark]:.3f}. "
            "Subtract the text's largest score from all of them first: exp() of a large score is infinite. A "
            "masked score must be below any other, as -inf is."
        )


def part_of(build: Build) -> tuple[PagedAttentionFunction, Probe]:
    """The reader's attention, and a probe where its engine computes."""
    engine = build(small_model(), dtype=torch.float32)
    return engine.decode_step.attention, make_probe(engine.device)


def called(attention: PagedAttentionFunction, probe: Probe) -> Tensor:
    """The attention's result. Raises BrokenContract if it is no tensor as expected, or if an argument was
    changed."""
    before = {name: given.clone() for name, given in probe.items() if isinstance(given, Tensor)}
    with torch.inference_mode():
        out = attention(*probe.values())
    for name, tensor in before.items():
        if not torch.equal(probe[name].nan_to_num(), tensor.nan_to_num()):
            raise BrokenContract(
                f"attention only reads: it changed its argument {name}. The engine appends the new keys and "
                "values later."
            )
    check_like("the result is like the query, [B, H, D]", out, tuple(before["query"].shape))
    return out


def first_wrong(out: Tensor, expected: Tensor) -> tuple[int, int] | None:
    """The first request and head whose result differs; NaN differs from all."""
    wrong = ~((out - expected).abs() <= TOLERANCE).all(dim=2)
    return tuple(wrong.nonzero()[0].tolist()) if wrong.any() else None


def complaint(b: int, h: int, found: Tensor, expected: Tensor) -> str:
    """What is wrong with the weights of request b and head h, [D] each; the plainest, if several are."""
    who, own, held = f"request {b}, head {h}", NUM_SLOTS + b, slots_of(b)
    if found.min() < -TOLERANCE:
        return (
            f"values are added up, not keys: {who}: a weight is {found.min():.3f}, expected 0 or more. A key "
            "decides how much its token counts, and then its value is added."
        )
    for mark in range(NUM_SLOTS + len(TABLES)):
        if mark not in (*held, own) and found[mark] > TOLERANCE:
            return stranger(b, mark, f"{who}: {name_of(mark)} has weight {found[mark]:.3f}, expected 0.")
    for mark in (own, *held):
        if found[mark] == 0:
            return (
                f"every token of the text takes part, and so does the new one: {who}: {name_of(mark)} has "
                f"weight 0, expected {expected[mark]:.3f}. The {len(held)} tokens in the cache have the "
                f"positions 0 to {len(held) - 1}; the new token comes as key_new and value_new."
            )
    if abs(found.sum() - 1) > 0.01:
        return (
            f"weights are a softmax, they add up to 1: {who}: they add up to {found.sum():.3f}. Divide by "
            "the sum over this request's tokens. What is masked has the score -inf before the softmax, so "
            "that it adds nothing to the sum."
        )
    mark = int((found - expected).abs().argmax())
    weight, wanted = beside(float(found[mark]), float(expected[mark]))
    return (
        f"a weight is the softmax of query · key / √D: {who}: {name_of(mark)} has weight {weight}, expected "
        f"{wanted}. D is the size of a head, {HEAD_DIM} here. Weight i is that of key i of the same head, "
        "and goes with value i."
    )


def name_of(mark: int) -> str:
    """What a mark stands for: a request's new token, or a slot of the pool and what it holds."""
    if mark >= NUM_SLOTS:
        return f"the new token of request {mark - NUM_SLOTS}"
    tokens = {
        slot: f"token {i} of request {b}" for b in range(len(TABLES)) for i, slot in enumerate(slots_of(b))
    }
    block, slot = divmod(mark, BLOCK_SIZE)
    return f"slot {slot} of block {block}, which holds {tokens.get(mark, 'no token')},"


def stranger(b: int, mark: int, found: str) -> str:
    """Which contract request b breaks that reads what is not its own."""
    if mark >= NUM_SLOTS:
        return f"a new token is its own request's: {found} Row {b} of key_new and value_new is request {b}'s."
    if mark // BLOCK_SIZE in TABLES[b]:
        return (
            f"a request ends at its context length: {found} Request {b} has {CONTEXT_LENS[b]} tokens in the "
            f"cache, positions 0 to {CONTEXT_LENS[b] - 1}; the rest of its last block holds none of them."
        )
    return (
        f"a token is read from the block that its request's row of the table names: {found} Row {b} of the "
        f"table begins with {list(TABLES[b])}: position 0 is in slot 0 of block {TABLES[b][0]}."
    )


GATE = Gate(
    ("attention",),
    LADDER["00"].options,
    trials=(reads_its_own_tokens, ignores_empty_slots, survives_large_scores),
    below_name="the plain engine",
)
