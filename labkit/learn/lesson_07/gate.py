"""Lesson 07: one table of blocks for all layers, and an attention that stores."""

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession
from labkit.engine.prefill import prefill_sessions
from labkit.errors import OutOfBlocksError
from labkit.kernels import PagedAttentionAppend, paged_attention_append_plain
from labkit.ladder import LADDER
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.reservations import reservations_proven
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.learn.gates.schedule import Invariant
from labkit.learn.gates.write_cases import FAR_BLOCK
from labkit.learn.gates.writes import LAYER, NUM_LAYERS, check_far_block, place_of, whose

# --- trials of an attention that also stores, every number of a small pool compared --------------------

NUM_BLOCKS, NUM_HEADS = 6, 2


class Case(NamedTuple):
    """A step of some requests: the slot of each row of the batch, and what is in all slots."""

    slots: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]  # -1 in the slot that pads a batch
    block_size: int = 4
    head_dim: int = 16

    def __str__(self) -> str:
        rows = [
            f"row {b}: length {self.lengths[slot]}, blocks {list(self.tables[slot])} (slot {slot})"
            for b, slot in enumerate(self.slots)
        ]
        return f"in a batch with {'; '.join(rows)}, in blocks of {self.block_size}"

    @property
    def places(self) -> dict[tuple[int, int], int]:
        """Where the new tokens go: the row of the batch by (block, place in it)."""
        size = self.block_size
        rows = [(b, self.tables[slot], self.lengths[slot]) for b, slot in enumerate(self.slots)]
        return {(table[n // size], n % size): b for b, table, n in rows if n >= 0}


CASES = (
    Case((0,), ((2, 0),), (1,)),
    Case((0,), ((2, 5),), (4,)),  # the first block is full
    Case((0,), ((2, 5),), (4,), block_size=8),
    Case((0,), ((2, 5),), (5,), head_dim=32),
    Case((0, 1, 2), ((4, 1, 0), (2, 5, 0), (3, 0, 0)), (5, 8, 0)),  # in a block, at an end, nothing yet
    Case((2, 0), ((4, 1, 0), (2, 5, 0), (3, 0, 0)), (5, 2, 0)),  # slots are not rows of the batch
    Case((0, 2, 1), ((4, 0), (5, 1), (0, 0)), (3, 6, -1)),  # block 0 is somebody's, not the padding's
)


@torch.inference_mode()
def right_places(build: Build) -> None:
    """A trial: each new key and value is at the end of its sequence, all else is as it was, and attention is
    that of the plain twin. Places that hold no token are NaN, so that whatever reads one is found out."""
    attention, device = _attention_of(build)
    for case in CASES:
        _try(attention, case, device)


@torch.inference_mode()
def far_blocks(build: Build) -> None:
    """A trial: what is stored in a far block is there."""
    attention, device = _attention_of(build)
    table, length = (torch.tensor(i, dtype=torch.int32, device=device) for i in ([[FAR_BLOCK]], [0]))

    def store(new: Tensor, *pools: Tensor) -> None:
        attention(new, new, new, *pools, table, length, length.long(), 1)

    new = torch.full((1, 2, 64), 7, dtype=torch.float16, device=device)
    check_far_block(store, new, "a token was stored")


def _attention_of(build: Build) -> tuple[PagedAttentionAppend, torch.device]:
    engine = build(small_model(), dtype=torch.float32)
    return engine.decode_step.device_step.attention.attention, engine.device


def _try(attention: PagedAttentionAppend, case: Case, device: torch.device) -> None:
    given, pools = _arguments(case, device)
    plain, _ = _arguments(case, device)
    expected = paged_attention_append_plain(**plain)
    before = [pool.clone() for pool in pools]
    out = attention(*given.values())
    new = {noun: given[f"{noun}_new"] for noun in ("key", "value")}
    for noun, pool, was in zip(new, pools, before, strict=True):
        _compare(noun, pool, was, new, case)
    _compare_attention(out, expected, case)


def _arguments(case: Case, device: torch.device) -> tuple[dict[str, Tensor | int], list[Tensor]]:
    """What a `PagedAttentionAppend` is given, by name, and both pools [L, N, H, block_size, D]."""
    like = torch.Generator().manual_seed(0)
    size, D, B = case.block_size, case.head_dim, len(case.slots)
    pools = torch.randn(2, NUM_LAYERS, NUM_BLOCKS, NUM_HEADS, size, D, generator=like)
    held = torch.zeros(NUM_BLOCKS, size, dtype=torch.bool)
    for table, length in zip(case.tables, case.lengths, strict=True):
        for token in range(length):
            held[table[token // size], token % size] = True
    pools = pools.masked_fill(~held[:, None, :, None], torch.nan).to(device)
    qkv = torch.randn(B, 3, NUM_HEADS, D, generator=like).to(device)  # as a model lays them out
    k_pool, v_pool = pools
    arguments = {
        "query": qkv[:, 0],
        "key_new": qkv[:, 1],
        "value_new": qkv[:, 2],
        "k_cache_layer": k_pool[LAYER],
        "v_cache_layer": v_pool[LAYER],
        "block_table": torch.tensor(case.tables, dtype=torch.int32, device=device),
        "context_lens": torch.tensor(case.lengths, dtype=torch.int32, device=device),
        "slot_mapping": torch.tensor(case.slots, device=device),
        "max_context_len": max(case.lengths),
    }
    return arguments, [k_pool, v_pool]


def _compare(noun: str, pool: Tensor, before: Tensor, new: dict[str, Tensor], case: Case) -> None:
    """Raises BrokenContract for the first number of a pool that is off; compared in every bit."""
    expected = before.clone()
    for (block, place), b in case.places.items():
        expected[LAYER, block, :, place] = new[noun][b]
    wrong = (pool.view(torch.int32) != expected.view(torch.int32)).nonzero().tolist()
    if not wrong:
        return
    owners = {(LAYER, block, place): b for (block, place), b in case.places.items()}
    # A place that lacks its own is told before one that was written on top.
    lacking = [at for at in wrong if (at[0], at[1], at[3]) in owners]
    on_top = [at for at in wrong if (at[0], at[1], at[3]) not in owners]
    at = (lacking or on_top)[0]
    layer_idx, block, _, place, _ = at
    there, wanted = float(pool[tuple(at)]), float(expected[tuple(at)])
    owner = owners.get((layer_idx, block, place))
    where = f"in {place_of(at, 'place')} of {case.head_dim}"
    if owner is None:
        raise BrokenContract(
            f"nothing is stored but the new tokens: {case}, a {noun} {where}, was {wanted:.3f} and is "
            f"{there:.3f}. A row of length -1 pads the batch: nothing is stored for it, and the block "
            "that its table names belongs to somebody."
        )
    if pool[tuple(at)].isnan():
        elsewhere = f"no number; what was stored is in {place_of(on_top[0], 'place')}" if on_top else ""
        found = f" ({elsewhere or 'nothing was stored'})"
    else:
        found = whose(there, new)
    raise BrokenContract(
        f"each new {noun} is at the end of its sequence: {case}, the {noun} of row {owner} {where}, is "
        f"{there:.3f}{found}, expected {wanted:.3f}. The block is what the slot's table names at length "
        "// block_size, the place in it is length % block_size, and each head has its own part of a block."
    )


def _compare_attention(out: object, expected: Tensor, case: Case) -> None:
    """Raises BrokenContract for the first number of the result [B, H, D] that is off."""
    if not isinstance(out, Tensor) or out.shape != expected.shape:
        there = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise BrokenContract(f"attention returns [B, H, D], {tuple(expected.shape)}, and not {there}.")
    for b, head, d in (~torch.isclose(out, expected, rtol=1e-4, atol=1e-5)).nonzero().tolist():
        raise BrokenContract(
            f"attention is that of the rung below: {case}, number {d} of head {head} of row {b} is "
            f"{float(out[b, head, d]):.3f}, expected {float(expected[b, head, d]):.3f}. A token sees the "
            "tokens before it, in the cache, and itself, from the arguments. A place without a token is NaN "
            "here. A row of length -1 stores nothing, and still attends to itself."
        )


# --- one table of blocks for all layers, and an attention that stores ----------------------------------

MANY_LAYERS = 13  # one more than GPT-2 has: their number is asked for, and not known


def more_than_one_table(engine: InferenceEngine) -> str:
    """How many tables of blocks there are, if there is not a single one."""
    num_tables, num_layers = engine.kv_manager.num_tables, engine.kv_manager.num_layers
    told = f"there are {num_tables} tables for the gate's {num_layers} layers, expected 1."
    return told if num_tables != 1 else ""


@torch.inference_mode()
def all_layers(build: Build) -> None:
    """A trial: where there is one table, it names blocks in every layer."""
    manager = build(small_model(MANY_LAYERS), dtype=torch.float32).kv_manager
    if manager.num_tables != 1:
        return  # which is told by ONE_TABLE
    layers, expected = manager.layers_of(0), manager.k_cache[:, 0].shape
    try:
        found = str(tuple(manager.k_cache[layers, 0].shape))
    except (IndexError, TypeError, RuntimeError) as error:
        found = f"no block ({one_line(str(error))})"
    if found != str(tuple(expected)):
        raise BrokenContract(
            f"one table serves all layers: layers_of(0) is {one_line(repr(layers))}, and "
            f"pool[layers_of(0), 0] is {found}, expected {tuple(expected)}: [L, H, block_size, D]. It is an "
            "index into the pool's first dimension."
        )


@torch.inference_mode()
def two_share(build: Build) -> None:
    """A trial: of two sequences that share a block, and nobody else, the first gets a copy and the second
    writes in place. In the schedules the prefix cache holds what is shared, too."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(4, 12, prefix_cache=False))
    manager = engine.kv_manager
    session = InferenceSession(manager)
    prefill_sessions(engine.model.network, [session], [(1, 2, 3)])
    both = [s.block_ids_per_layer[0] for s in (session, session.fork())]
    with reservations_proven(engine):
        manager.reserve_token_batch(0, both)


@torch.inference_mode()
def no_room(build: Build) -> None:
    """A trial: a reservation that finds no free block raises. A schedule's scheduler looks before it."""
    manager = (engine := build(small_model(), dtype=torch.float32, cache=CacheConfig(4, 4))).kv_manager
    session = InferenceSession(manager)
    prefill_sessions(engine.model.network, [session], [(1, 2, 3, 4)])
    for _ in range(manager.num_free_blocks):
        manager.allocate_block(0, start=0)
    with suppress(OutOfBlocksError):
        manager.reserve_token_batch(0, [session.block_ids_per_layer[0]])
        raise BrokenContract(
            "a reservation that finds no block raises: no block was free for a sequence whose last one is "
            "full, and it did not. Let the error through: the engine must learn of it to undo the step."
        )


ONE_TABLE = Invariant(
    "one table serves all layers",
    more_than_one_table,
    "count_tables says how many lists of blocks a sequence has, whatever the number of layers.",
)
EVERY_LAYER = STORED._replace(
    hint="A block id names a place in all layers: what is stored or copied there is stored or copied in each."
)

GATE = Gate(
    ("layer_tables", "kv_write"),
    LADDER["06"].options,
    (ONE_TABLE, TRUE_RECORDS, EVERY_LAYER),
    (reservations_proven, steps_proven),
    MIXED,
    trials=(all_layers, right_places, far_blocks),
    costs=(two_share, no_room),
    interpreted=("kv_write",),
)
