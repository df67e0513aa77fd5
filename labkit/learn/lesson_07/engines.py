"""Lesson 07: the engines that its steps are counted on."""

from dataclasses import replace

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.ladder import LADDER
from labkit.model import GPT2Config, LanguageModel
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions

# Between the two rungs: one table, and still two kernels per layer.
HALFWAY = replace(LADDER["06"].options, layer_tables="shared")


GPT2_LAYERS = 12


def small_gpt2(n_layer: int = GPT2_LAYERS, n_positions: int = 64) -> LanguageModel:
    """A model with GPT-2's layers and heads, but narrow and with random weights, so that a step takes little
    time."""
    config = GPT2Config(256, n_positions, n_embd=96, n_layer=n_layer, n_head=12, tie_word_embeddings=False)
    gpt2 = random_network(config, seed=0)
    return LanguageModel(f"random: {n_layer} narrow layers", gpt2, WordTokenizer(config.vocab_size, None))


def sharing_engine(model: LanguageModel, options: EngineOptions, device: torch.device) -> InferenceEngine:
    """An engine with eight requests about to decode for the first time: they share the two blocks of their
    prompt with the prefix cache, and the second block is half full."""
    engine = InferenceEngine(
        model,
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=64),
        scheduler=SchedulerConfig(max_batch_size=8),
    )
    prompt = [1, 2, 3, 4, 5, 6]
    engine.generate([prompt], SamplingParams(max_new_tokens=1, stop_on_eos=False))  # fills the prefix cache
    for _ in range(8):
        engine.add_request(prompt, SamplingParams(max_new_tokens=12, stop_on_eos=False))
    engine.step()  # the prefill, which computes nothing: the prompt is known
    return engine


def schedule_engine(
    model: LanguageModel, options: EngineOptions, device: torch.device, max_blocks: int = 10
) -> InferenceEngine:
    """An engine for `eventful_schedule`: batches of 4, and `max_blocks` blocks of 4 tokens per layer, few
    enough that requests are preempted."""
    return InferenceEngine(
        model,
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=max_blocks),
        scheduler=SchedulerConfig(max_batch_size=4),
    )
