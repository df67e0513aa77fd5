"""Lesson 00: a cache whose values are marks, and the results of likely mistakes on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.learn.lesson_00.pieces import paged_attention

# --- a cache whose values are marks, so that the result of an attention says what was read -------------

BLOCK_SIZE, NUM_BLOCKS = 4, 7
# By request: its blocks, and its tokens in the cache. Nobody holds blocks 2 and 6. The longest text ends
# within a block, so that its length is not the number of columns; the shortest fills its block.
TABLES = ((3, 5), (4, 1), (0,))
CONTEXT_LENS = (6, 7, 4)
ROW_LENGTH = 3  # of the block table; a row is padded with 0, which is request 2's block
NUM_HEADS, HEAD_DIM = 2, 32
NUM_SLOTS = NUM_BLOCKS * BLOCK_SIZE


@dataclass(frozen=True)
class Probe:
    """The tensors that a paged attention is called with. In each value a single number is 1, at a place of
    its own: first come the pool's slots, block by block, then each request's new token. So the attention of a
    request and head, [D], is a list of weights.
    """

    query: Tensor  # [B, H, D]
    key_new: Tensor  # [B, H, D]
    value_new: Tensor  # [B, H, D]
    k_cache_layer: Tensor  # [N, H, block_size, D]
    v_cache_layer: Tensor  # [N, H, block_size, D]
    block_table: Tensor  # [B, M] int32
    context_lens: Tensor  # [B] int32
    max_context_len: int

    def copy(self) -> "Probe":
        """The same numbers in tensors of their own."""
        tensors = {name: t.clone() for name, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **tensors)

    def of_a_long_text(self, num_tokens: int) -> "Probe":
        """The last request's alone, whose one block is its text again and again."""
        one = {name: getattr(self, name)[-1:] for name in ("query", "key_new", "value_new")}
        table = self.block_table[-1:, :1].repeat(1, num_tokens // BLOCK_SIZE)
        lens = torch.full_like(self.context_lens[-1:], num_tokens)
        return replace(self, **one, block_table=table, context_lens=lens, max_context_len=num_tokens)

    def in_half_blocks(self) -> "Probe":
        """The same tokens in blocks half as large: block i's are 2 * i and 2 * i + 1."""
        N, H, size, D = self.k_cache_layer.shape
        caches = {
            name: getattr(self, name).view(N, H, 2, size // 2, D).transpose(1, 2).reshape(2 * N, H, -1, D)
            for name in ("k_cache_layer", "v_cache_layer")
        }
        table = torch.stack([2 * self.block_table, 2 * self.block_table + 1], dim=2).flatten(1)
        return replace(self, **caches, block_table=table)

    def with_nan(self) -> "Probe":
        """With NaN in all slots that hold no token."""
        copied = self.copy()
        for slot in set(range(NUM_SLOTS)) - {slot for b in range(len(TABLES)) for slot in slots_of(b)}:
            for cache in (copied.k_cache_layer, copied.v_cache_layer):
                cache[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = torch.nan
        return copied


def make_probe(device: torch.device) -> Probe:
    """The probe: the same random queries and keys each time."""
    generator = torch.Generator().manual_seed(0)
    one_per_request = (len(TABLES), NUM_HEADS, HEAD_DIM)
    of_the_pool = (NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, HEAD_DIM)
    query, key_new = (torch.randn(one_per_request, generator=generator) for _ in range(2))
    keys = torch.randn(of_the_pool, generator=generator)
    marks = torch.eye(HEAD_DIM)
    values = marks[:NUM_SLOTS].view(NUM_BLOCKS, 1, BLOCK_SIZE, HEAD_DIM).expand(of_the_pool)
    value_new = marks[NUM_SLOTS : NUM_SLOTS + len(TABLES), None].expand(one_per_request)
    table = [[*row, *[0] * (ROW_LENGTH - len(row))] for row in TABLES]
    tensors = (query, key_new, value_new, keys, values)
    return Probe(
        *(tensor.contiguous().to(device) for tensor in tensors),
        torch.tensor(table, dtype=torch.int32, device=device),
        torch.tensor(CONTEXT_LENS, dtype=torch.int32, device=device),
        max(CONTEXT_LENS),
    )


def slots_of(b: int) -> list[int]:
    """The pool's slots that hold request b's tokens, in order."""
    slots = [block * BLOCK_SIZE + slot for block in TABLES[b] for slot in range(BLOCK_SIZE)]
    return slots[: CONTEXT_LENS[b]]


def place_of(mark: int) -> str:
    """In words, what the number at this place of a result is the weight of."""
    if mark >= NUM_SLOTS:
        return f"request {mark - NUM_SLOTS}'s own new token"
    return f"slot {mark % BLOCK_SIZE} of block {mark // BLOCK_SIZE}"


def token_in(mark: int) -> str:
    """In words, which token is in a slot of the pool."""
    for b in range(len(TABLES)):
        if mark in slots_of(b):
            return f"token {slots_of(b).index(mark)} of request {b}"
    return "no token"


# --- what a wrong attention may have done, each computed -----------------------------------------------


def by_hand(probe: Probe) -> Tensor:
    """The right attention of a probe, [B, H, D]."""
    return paged_attention()(**vars(probe))


# Mistakes that are told as a whole: the sentences, and the attention that each makes of a probe.
SUSPECTS: dict[str, Callable[[Probe], Tensor]] = {
    "a score is query · key / √D: all tokens of a text have the same weight. How well its key fits the query "
    "decides a weight.": lambda probe: by_hand(replace(probe, query=0 * probe.query)),
    "values are added up, not keys. A key decides how much its token counts, and then its value is added.": (
        lambda probe: by_hand(replace(probe, value_new=probe.key_new, v_cache_layer=probe.k_cache_layer))
    ),
    "the new token has a key and a value of its own: they are swapped. key_new comes after the keys of the "
    "text, value_new after its values.": (
        lambda probe: by_hand(replace(probe, key_new=probe.value_new, value_new=probe.key_new))
    ),
}
