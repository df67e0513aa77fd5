"""Lesson 00: paged attention put together from pieces, one request and one head after the other."""

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.kernels import PagedAttentionFunction
from labkit.learn.exercise import BrokenContract

Gather = Callable[[Tensor, Tensor, int], Tensor]
Weights = Callable[[Tensor, Tensor], Tensor]


def gather(cache: Tensor, row: Tensor, num_tokens: int) -> Tensor:
    """One request's keys or values, [H, T, D], from a layer's pool [N, H, block_size, D].

    row: [M], the request's row of the block table. num_tokens: T, how many tokens it has in the cache.
    """
    num_blocks = -(-num_tokens // cache.shape[2])
    blocks = cache[row[:num_blocks].long()]  # [m, H, block_size, D]
    return blocks.transpose(0, 1).flatten(1, 2)[:, :num_tokens]


def contiguous_gather(cache: Tensor, row: Tensor, num_tokens: int) -> Tensor:
    """The pool's first tokens, whoever they belong to: right for a cache without blocks, and wrong here."""
    return cache.transpose(0, 1).flatten(1, 2)[:, :num_tokens]


def weights(query: Tensor, keys: Tensor) -> Tensor:
    """How much each of T tokens counts for one head, [T]; their sum is 1. query: [D], keys: [T, D]."""
    scores = keys @ query / len(query) ** 0.5
    exps = (scores - scores.max()).exp()
    return exps / exps.sum()


def paged_attention(gather: Gather = gather, weights: Weights = weights) -> PagedAttentionFunction:
    """A paged attention that the engine runs, from its two pieces; each is the package's if it is not given.
    It raises BrokenContract where a piece gives something of another shape. It wraps the piece that is not
    the package's, so that `inspect.unwrap` finds it.
    """

    def attention(
        query: Tensor,
        key_new: Tensor,
        value_new: Tensor,
        k_cache_layer: Tensor,
        v_cache_layer: Tensor,
        block_table: Tensor,
        context_lens: Tensor,
        max_context_len: int,
    ) -> Tensor:
        out = torch.empty_like(query)  # [B, H, D]
        _, H, D = query.shape

        def with_new(cache: Tensor, new: Tensor, b: int, num_tokens: int) -> Tensor:
            held = gather(cache, block_table[b], num_tokens)
            check_shape("gather returns [H, T, D]", held, (H, num_tokens, D))
            return torch.cat([held, new[b][:, None]], dim=1)  # [H, T + 1, D]

        for b, num_tokens in enumerate(context_lens.tolist()):
            keys = with_new(k_cache_layer, key_new, b, num_tokens)
            values = with_new(v_cache_layer, value_new, b, num_tokens)
            for h in range(H):
                of_tokens = weights(query[b, h], keys[h])
                check_shape("weights returns [T]", of_tokens, (num_tokens + 1,))
                out[b, h] = of_tokens @ values[h]
        return out

    attention.__wrapped__ = weights if gather.__module__ == __name__ else gather
    return attention


def check_shape(contract: str, given: object, shape: tuple[int, ...]) -> None:
    """Raise BrokenContract, with what a piece promises, if this is no tensor of this shape."""
    if not isinstance(given, Tensor) or tuple(given.shape) != shape:
        what = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise BrokenContract(f"{contract}, here {list(shape)}. It gave {what}.")
