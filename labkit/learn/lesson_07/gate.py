"""Lesson 07: one table of blocks for all layers, and an attention that stores."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession
from labkit.engine.prefill import prefill_sessions
from labkit.kvcache import KVBlockManager
from labkit.ladder import LADDER
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import CLOSE, steps_proven
from labkit.learn.gates.schedule import Invariant
from labkit.learn.lesson_07.store import far_block, right_places
from labkit.watch.replaced import replaced

MANY_LAYERS = 13  # one more than GPT-2 has: their number is asked for, and not known


def more_than_one_table(engine: InferenceEngine) -> str:
    """How many tables of blocks there are, if there is not a single one."""
    num_tables = engine.kv_manager.num_tables
    if num_tables != 1:
        return (
            f"there are {num_tables} tables for the gate's {engine.kv_manager.num_layers} layers, expected 1."
        )
    for request, session in engine.scheduler.running.items():
        if len(session.block_ids_per_layer) != 1:
            num_lists = len(session.block_ids_per_layer)
            return f"request {request.request_id} has {num_lists} lists of blocks, expected 1."
    return ""


@cache
@torch.inference_mode()
def keys_and_values(token_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """What the small model's cache must hold of these tokens, each [L, H, T, D]: a prefill of all of them."""
    model = small_model()
    config = model.config
    manager = KVBlockManager(
        num_layers=config.num_layers,
        num_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=config.max_positions,
        max_blocks_per_layer=1,
    )
    session = InferenceSession(manager)
    prefill_sessions(model.network, [session], [token_ids])
    return session.dense_kv()


def wrong_layer(engine: InferenceEngine) -> str:
    """The first place of a request's keys or values that is not its token's, with layer and block."""
    block_size = engine.kv_manager.block_size
    for request, session in engine.scheduler.running.items():
        there, expected = session.dense_kv(), keys_and_values(request.token_ids[: session.num_tokens])
        for name, numbers, wanted in zip(("keys", "values"), there, expected, strict=True):
            if numbers.shape != wanted.shape:
                return (
                    f"request {request.request_id} has {name} of the shape {tuple(numbers.shape)}, expected "
                    f"{tuple(wanted.shape)}: [L, H, T, D]."
                )
            is_wrong = ~torch.isclose(numbers.cpu().float(), wanted, **CLOSE).all(dim=3).all(dim=1)  # [L, T]
            for layer_idx, token in is_wrong.nonzero().tolist():
                return (
                    f"the {name} of token {token} of request {request.request_id} (block "
                    f"{session.block_ids_per_layer[0][token // block_size]}, place {token % block_size}) are "
                    f"another's in layer {layer_idx}."
                )
    return ""


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
            f"one table speaks for all layers: layers_of(0) is {one_line(repr(layers))}, and "
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
    free = manager.num_free_blocks
    with reservations_proven(engine):
        manager.reserve_token_batch(0, both)
    if taken := free - manager.num_free_blocks - 1:
        raise BrokenContract(
            "who copies a shared block lets go of it, and whoever is left alone writes in place: for two "
            f"sequences that share a block, and nobody else, {taken + 1} blocks were taken, expected 1. Ask "
            "`append_takes_block` for each list when its turn comes."
        )


@contextmanager
def reservations_proven(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, each reservation must make room for one token per sequence, in a block of its own,
    and tell which lists it changed."""
    manager = engine.kv_manager

    def reserving(inner: Callable[..., list[int]]) -> Callable[..., list[int]]:
        def reserve(table_idx: int, block_ids_list: list[list[int]]) -> list[int]:
            before = [(list(block_ids), manager.num_tokens(block_ids)) for block_ids in block_ids_list]
            told = inner(table_idx, block_ids_list)
            for place, (block_ids, (_, num_tokens)) in enumerate(zip(block_ids_list, before, strict=True)):
                check_reserved(manager, place, block_ids, num_tokens)
            check_told(told, [held for held, _ in before], block_ids_list)
            return told

        return reserve

    with replaced(manager, "reserve_token_batch", reserving):
        yield ()


def check_told(told: object, before: list[list[int]], after: list[list[int]]) -> None:
    """Raise BrokenContract if what a reservation returned are not the places of the lists that it changed."""
    changed = [b for b, (held, block_ids) in enumerate(zip(before, after, strict=True)) if held != block_ids]
    if not isinstance(told, list) or any(type(place) is not int for place in told):
        raise BrokenContract(
            f"a reservation tells which lists changed: {one_line(repr(told))} is returned, expected "
            f"{changed}: a list of indices into the batch, which is empty if no list changed."
        )
    for place in sorted(set(told) ^ set(changed)):
        is_there = 0 <= place < len(after)
        had = f"had the blocks {before[place]} and has {after[place]}" if is_there else "is not in the batch"
        raise BrokenContract(
            f"a reservation tells which lists changed: sequence {place} {had}, "
            f"but {told} is returned, expected {changed}. These are indices into the batch. A block that was "
            "replaced by its copy is a change, too: the device must be told."
        )


def check_reserved(manager: KVBlockManager, place: int, block_ids: list[int], num_tokens: int) -> None:
    """Raise BrokenContract if a sequence of `num_tokens` has no room for one more, counted once."""
    counted = manager.num_tokens(block_ids)
    if counted != num_tokens + 1:
        raise BrokenContract(
            f"a reservation counts one token: sequence {place} had {num_tokens} in its blocks and has "
            f"{counted}, expected {num_tokens + 1}. A token has the same place in every layer, so it counts "
            "once."
        )
    if manager.refcount(block_ids[-1]) != 1:
        raise BrokenContract(
            f"a reserved block has one holder: the last block of sequence {place}, {block_ids[-1]}, has "
            f"{manager.refcount(block_ids[-1])}. Who appends to a shared block needs a copy first."
        )
    in_last = manager.num_tokens(block_ids[-1:])
    if not 1 <= in_last <= manager.block_size:
        raise BrokenContract(
            f"a reserved token is in the last block: that of sequence {place}, {block_ids[-1]}, counts "
            f"{in_last} tokens, expected 1 to {manager.block_size}. Make the block ready first, then count "
            "the token in it."
        )


ONE_TABLE = Invariant(
    "one table serves all layers",
    more_than_one_table,
    "count_tables says how many lists of blocks a sequence has, whatever the number of layers.",
)
EVERY_LAYER = Invariant(
    "every layer has the keys and values of every token",
    wrong_layer,
    "A block id names a place in all layers: what is stored or copied there is stored or copied in each, and "
    "a block that has another holder is not written to.",
)

GATE = Gate(
    ("layer_tables", "kv_write"),
    LADDER["06"].options,
    (ONE_TABLE, EVERY_LAYER),
    (reservations_proven, steps_proven),
    MIXED,
    trials=(all_layers, right_places, far_block),
    costs=(two_share,),
    interpreted=("kv_write",),
)
