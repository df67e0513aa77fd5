"""Lesson 07: one table of blocks for all layers, and an attention that stores."""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine import InferenceEngine
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
from labkit.learn.gates.writes import FAR_BLOCK, check_far_block
from labkit.watch.accesses import record_accesses

# --- an attention that also stores, every number of a small pool compared ------------------------------

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


CASES = (
    Case((0,), ((2, 0),), (1,)),
    Case((0,), ((2, 5),), (5,), block_size=8, head_dim=32),
    Case((2, 0, 1, 3), ((4, 1), (2, 5), (3, 0), (0, 0)), (5, 4, 0, -1)),  # block 0 is not the padding's
)


@torch.inference_mode()
def right_places(build: Build) -> None:
    """A trial: attention and cache are those of the plain twin. Places that hold no token are NaN, so that
    whatever reads one is found out."""
    attention, device = _attention_of(build)
    for case in CASES:
        plain, given = _arguments(case, device), _arguments(case, device)
        expected = paged_attention_append_plain(**plain)
        with record_accesses() if device.type == "cpu" else nullcontext():  # nothing outside is touched
            out = attention(*given.values())
        for noun in ("key", "value"):
            there, right = (pools[f"{noun[0]}_cache_layer"] for pools in (given, plain))
            same = torch.isclose(there, right, rtol=0, atol=0, equal_nan=True)
            for at in map(tuple, (~same).nonzero().tolist()):
                block, head, place, d = at
                raise BrokenContract(
                    "each new key and value is at the end of its sequence, and nothing else is stored: "
                    f"{case}, number {d} of the {noun} in place {place} of block {block}, head {head}, is "
                    f"{there[at].item():.3f}, expected {right[at].item():.3f}. The block is what the slot's "
                    "table names at length // block_size, the place in it is length % block_size, and each "
                    "head has its own part of a block. A row of length -1 stores nothing. (Where no token "
                    "was stored there is nan.)"
                )
        for at in map(tuple, (~torch.isclose(out, expected, rtol=1e-4, atol=1e-5)).nonzero().tolist()):
            raise BrokenContract(
                f"attention is that of the rung below: {case}, value {list(at)} of [B, H, D] is "
                f"{out[at].item():.3f}, expected {expected[at].item():.3f}. A token sees the tokens before "
                "it, in the cache, and itself, from the arguments. A row of length -1 attends to itself."
            )


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


def _arguments(case: Case, device: torch.device) -> dict[str, Tensor | int]:
    """What a `PagedAttentionAppend` is given, by name."""
    like = torch.Generator().manual_seed(0)
    size, D, B = case.block_size, case.head_dim, len(case.slots)
    pools = torch.randn(2, NUM_BLOCKS, NUM_HEADS, size, D, generator=like)
    held = torch.zeros(NUM_BLOCKS, size, dtype=torch.bool)
    for table, length in zip(case.tables, case.lengths, strict=True):
        for token in range(length):
            held[table[token // size], token % size] = True
    k_cache, v_cache = pools.masked_fill(~held[:, None, :, None], torch.nan).to(device)
    qkv = torch.randn(B, 3, NUM_HEADS, D, generator=like).to(device)  # as a model lays them out
    return {
        "query": qkv[:, 0],
        "key_new": qkv[:, 1],
        "value_new": qkv[:, 2],
        "k_cache_layer": k_cache,
        "v_cache_layer": v_cache,
        "block_table": torch.tensor(case.tables, dtype=torch.int32, device=device),
        "context_lens": torch.tensor(case.lengths, dtype=torch.int32, device=device),
        "slot_mapping": torch.tensor(case.slots, device=device),
        "max_context_len": max(case.lengths),
    }


# --- one table of blocks for all layers, and an attention that stores ----------------------------------


MANY_LAYERS = 13  # one more than GPT-2 has: their number is asked for, and not known


def more_than_one_table(engine: InferenceEngine) -> str:
    """How many tables of blocks there are, if there is not a single one."""
    num_tables, num_layers = engine.kv_manager.num_tables, engine.kv_manager.num_layers
    told = f"there are {num_tables} tables for the gate's {num_layers} layers, expected 1."
    return told if num_tables != 1 else ""


def all_layers(build: Build) -> None:
    """A trial: where there is one table, it names blocks in every layer."""
    manager = build(small_model(MANY_LAYERS), dtype=torch.float32).kv_manager
    layers = manager.layers_of(0)
    if manager.num_tables == 1 and manager.k_cache[layers].shape != manager.k_cache.shape:
        raise BrokenContract(
            f"one table serves all layers: layers_of(0) is {one_line(repr(layers))} in a pool of "
            f"{manager.num_layers} layers. It is an index that selects all of them, however many there are."
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
    interpreted=("kv_write",),
)
