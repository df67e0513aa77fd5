"""Lesson 02: engines with six requests each, whose last blocks are seldom, or all at once, full."""

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.watch import steady_prompts

NEW_TOKENS = SamplingParams(max_new_tokens=30, stop_on_eos=False)
SHARED = "ROMEO:\nGood night"
OTHERS = ("JULIET:\n", "O", "KING HENRY VI:\nWhat news from Warwick?", "First Citizen:\n")


def six_different(
    model: LanguageModel, options: EngineOptions, device: torch.device | str
) -> InferenceEngine:
    """An engine with blocks of 4 and six waiting requests: two with the same prompt, which was asked before,
    and four of other lengths. The prefix cache keeps one prompt only."""
    cache = CacheConfig(block_size=4, max_prefix_entries=1)
    engine = InferenceEngine(model, options, device=device, dtype=torch.float32, cache=cache)
    engine.generate([SHARED], SamplingParams(max_new_tokens=1))
    for prompt in (SHARED, SHARED, *OTHERS):
        engine.add_request(prompt, NEW_TOKENS)
    return engine


def six_equal(model: LanguageModel, options: EngineOptions, device: torch.device | str) -> InferenceEngine:
    """An engine with blocks of 4 and six waiting requests of equal length, without a prefix cache."""
    cache = CacheConfig(block_size=4, prefix_cache=False)
    engine = InferenceEngine(model, options, device=device, dtype=torch.float32, cache=cache)
    for prompt in steady_prompts(6, lengths=(6,)):
        engine.add_request(prompt, NEW_TOKENS)
    return engine
