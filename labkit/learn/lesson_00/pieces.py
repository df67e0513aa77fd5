"""Lesson 00: paged attention in pieces, the call of a live step, and slots that stay empty."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.bench.cost_cards import count_operators
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.kernels import PagedAttentionFunction, paged_attention_plain
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import raised
from labkit.model import LanguageModel
from labkit.watch import noting, replaced, steady_decode, steady_prompts

# --- paged attention put together from pieces, one request and one head after the other ----------------

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


PACKAGES_GATHER = gather


def paged_attention(gather: Gather = gather, weights: Weights = weights) -> PagedAttentionFunction:
    """A paged attention that the engine runs, from its two pieces; each is the package's if it is not given.
    It raises BrokenContract where a piece gives something of another shape. It wraps the piece that is not
    the package's, so that `inspect.unwrap` finds it.
    """

    def attention(
        query, key_new, value_new, k_cache_layer, v_cache_layer, block_table, context_lens, max_context_len
    ) -> Tensor:
        out = torch.empty_like(query)  # [B, H, D]
        _, H, D = query.shape

        def with_new(cache: Tensor, new: Tensor, b: int, num_tokens: int) -> Tensor:
            held = gather(cache, block_table[b], num_tokens)
            check_like("gather returns [H, T, D]", held, (H, num_tokens, D))
            return torch.cat([held, new[b][:, None]], dim=1)  # [H, T + 1, D]

        for b, num_tokens in enumerate(context_lens.tolist()):
            keys = with_new(k_cache_layer, key_new, b, num_tokens)
            values = with_new(v_cache_layer, value_new, b, num_tokens)
            for h in range(H):
                of_tokens = weights(query[b, h], keys[h])
                check_like("weights returns [T]", of_tokens, (num_tokens + 1,))
                out[b, h] = of_tokens @ values[h]
        return out

    attention.__wrapped__ = weights if gather is PACKAGES_GATHER else gather
    return attention


def check_like(contract: str, given: object, shape: tuple[int, ...]) -> None:
    """Raise BrokenContract, with what a piece promises, if this is no tensor of this shape."""
    if not isinstance(given, Tensor) or tuple(given.shape) != shape:
        what = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise BrokenContract(f"{contract}, here {list(shape)}. It gave {what}.")


def serve_three(model: LanguageModel, device: torch.device, num_steps: int) -> InferenceEngine:
    """An engine with blocks of 4 tokens, so many steps after three requests arrived: two have the prompt of
    one that has run before, which the prefix cache knows."""
    cache = CacheConfig(block_size=4, max_blocks_per_layer=15)
    engine = InferenceEngine(model, LADDER["00"].options, device=device, dtype=torch.float32, cache=cache)
    engine.generate(["ROMEO:\nGood night"], SamplingParams(max_new_tokens=1))
    for prompt, seed in (("ROMEO:\nGood night", 1), ("ROMEO:\nGood night", 2), ("JULIET:\n", 3)):
        engine.add_request(prompt, SamplingParams(max_new_tokens=40, temperature=0.9, seed=seed))
    for _ in range(num_steps):
        engine.step()
    return engine


def attention_call(engine: InferenceEngine, layer_idx: int) -> dict[str, Any]:
    """Run a decode step; the arguments of one layer's attention in it, by name, as they were then."""
    calls: list[list[Any]] = []

    def note(*args: Any) -> None:
        calls.append([arg.clone() if isinstance(arg, Tensor) else arg for arg in args])

    with replaced(engine.decode_step, "attention", noting(note)):
        engine.step()
    return dict(zip(signature(paged_attention_plain).parameters, calls[layer_idx], strict=True))


def operators_of_a_step(engine: InferenceEngine) -> str:
    """How many PyTorch operators a decode step of 8 requests dispatches. Attention may be the reader's."""
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))):
            operators, _ = count_operators(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"operators: not counted, because the engine {raised(error)}"
    return f"operators of a step, 8 requests: {operators:,}"


def head_weights(call: dict[str, Any], head: int, gather: Gather, weights: Weights) -> list[float]:
    """What each token counts for one head of a call's first request, its new token last, by these pieces."""
    keys = gather(call["k_cache_layer"], call["block_table"][0], int(call["context_lens"][0]))[head]
    return weights(call["query"][0, head], torch.cat([keys, call["key_new"][0, head][None]])).tolist()


class Waste(NamedTuple):
    """What texts take in blocks of one size: the share of empty slots among all that are set aside, and the
    entries of a row of the block table, which has room for the longest possible text."""

    block_size: int
    share: float
    row_entries: int


def waste_of(lengths: Sequence[int], block_size: int, max_length: int) -> Waste:
    """What texts of these lengths take, each in blocks of its own.

    lengths: in tokens, none of them 0. max_length: of the longest possible text, in tokens.
    """
    slots = block_size * sum(-(-length // block_size) for length in lengths)
    return Waste(block_size, 1 - sum(lengths) / slots, -(-max_length // block_size))
