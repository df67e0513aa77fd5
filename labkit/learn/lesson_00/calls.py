"""Lesson 00: what attention is called with in a step, and what calling it costs."""

from typing import Any

import torch

from labkit.bench.cost_cards import count_operators
from labkit.engine import InferenceEngine
from labkit.learn.gates.gate import raised
from labkit.learn.lesson_00.pieces import Gather, Weights
from labkit.watch import noting, replaced, steady_decode, steady_prompts

ARGUMENTS = (
    "query",
    "key_new",
    "value_new",
    "k_cache_layer",
    "v_cache_layer",
    "block_table",
    "context_lens",
    "max_context_len",
)


def attention_call(engine: InferenceEngine, layer_idx: int) -> dict[str, Any]:
    """Run a decode step; the arguments of one layer's attention in it, by name, as they were then."""
    calls: list[dict[str, Any]] = []

    def note(*args: Any) -> None:
        if len(calls) <= layer_idx:
            copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            calls.append(dict(zip(ARGUMENTS, copies, strict=True)))

    with replaced(engine.decode_step, "attention", noting(note)):
        engine.step()
    return calls[layer_idx]


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
