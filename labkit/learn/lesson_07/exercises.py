"""Lesson 07: its exercises."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.learn.exercise import Exercise, check_unchanged


def append_all_layers(
    k_cache: Tensor,  # [L, N, H, block_size, D]
    block_table: Tensor,  # [B, M]
    context_lens: Tensor,  # [B]
    keys: Tensor,  # [L, B, H, D]
) -> None:
    """Write each request's new key behind its tokens, in all layers; rows of length -1 are padding."""
    block_size = k_cache.shape[3]
    b = (context_lens >= 0).nonzero()[:, 0]
    block, pos = block_table[b, context_lens[b] // block_size], context_lens[b] % block_size
    for layer, layer_keys in zip(k_cache, keys, strict=True):
        layer[block, :, pos] = layer_keys[b]


def play_append_all_layers(
    attempt: Callable, block_table: list[list[int]], context_lens: list[int], block_size: int
) -> dict[str, Any]:
    """The places that the attempt writes in a pool of other tokens' keys, and whose key is at each."""
    L, N, H, D, B = 3, 2 + max(map(max, block_table)), 2, 5, len(block_table)
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(L, N, H, block_size, D, generator=generator)
    arguments = {
        "block_table": torch.tensor(block_table),
        "context_lens": torch.tensor(context_lens),
        "keys": torch.randn(L, B, H, D, generator=generator),
    }
    after, given = before.clone(), {name: tensor.clone() for name, tensor in arguments.items()}
    attempt(after, *given.values())
    check_unchanged(given, arguments)
    places = (before != after).any(4).any(2).any(0).nonzero().tolist()
    whose = {
        (n, t): [b for b in range(B) if torch.allclose(after[:, n, :, t], arguments["keys"][:, b])]
        for n, t in places
    }
    return {"the requests whose keys were written, by (block, place)": whose}


def draw_append_all_layers(rng: random.Random) -> dict[str, Any]:
    """Draw requests of up to three blocks that end at a boundary or between, with padding anywhere."""
    block_size, free_blocks = rng.choice((1, 2, 4, 8)), rng.sample(range(14), 14)
    free_blocks.append(free_blocks.pop(free_blocks.index(0)))  # the first taken: padding names block 0, too
    block_table, context_lens = [], []
    for _ in range(rng.randint(1, 4)):
        longest = 3 * block_size - 1
        at_an_end = block_size * rng.choice((0, 0, 1, 2, 3)) - 1  # the last place of a block; -1 is padding
        length = rng.choice((at_an_end, min(at_an_end + 1, longest), rng.randint(0, longest)))
        used = [free_blocks.pop() for _ in range(length // block_size + 1)]
        block_table.append(used + [0] * (3 - len(used)))
        context_lens.append(length)
    return {"block_table": block_table, "context_lens": context_lens, "block_size": block_size}


APPEND_ALL_LAYERS = Exercise(
    solution=append_all_layers,
    draw=draw_append_all_layers,
    contract="In every layer, a request's new key goes right after its tokens, and nothing else is written.",
    play=play_append_all_layers,
)


def blocks_needed(sequences: list[tuple[int, int | None]], holders: dict[int, int], block_size: int) -> int:
    """How many free blocks one more token behind each sequence takes from the pool, in order."""
    holders = dict(holders)
    needed = 0
    for num_tokens, last_block in sequences:
        if num_tokens % block_size == 0:  # empty, or its last block is full
            needed += 1
        elif holders[last_block] > 1:  # copied; the last holder writes in place
            holders[last_block] -= 1
            needed += 1
    return needed


def draw_blocks_needed(rng: random.Random) -> dict[str, Any]:
    """Draw sequences that share their last blocks with each other, with others, or not at all."""
    block_size = rng.choice((1, 2, 4, 8))
    sequences, holders = [], {}
    for block in rng.sample(range(12), rng.randint(1, 3)):
        num_tokens = rng.choice((0, block_size, 2 * block_size, rng.randint(1, 3 * block_size)))
        sharers = rng.choice((1, 1, 2, 3))
        sequences += [(num_tokens, block if num_tokens else None)] * sharers
        if num_tokens:
            holders[block] = sharers + rng.choice((0, 0, 1, 2))
    rng.shuffle(sequences)
    return {"sequences": sequences, "holders": holders, "block_size": block_size}


BLOCKS_NEEDED = Exercise(
    solution=blocks_needed,
    draw=draw_blocks_needed,
    contract="A sequence needs a block if it has none, if its last one is full, or if others still hold "
    "its last one when its turn comes.",
)
