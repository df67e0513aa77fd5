"""Lesson 04: where the requests of a small engine write, step after step."""

from collections.abc import Sequence

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.watch import Positions, record_positions, steady_prompts


def watch_positions(
    model: LanguageModel,
    options: EngineOptions,
    device: torch.device,
    lengths: Sequence[int],
    late_lengths: Sequence[int] = (),
    num_steps: int = 24,
    block_size: int = 8,
) -> Positions:
    """Record where requests with prompts of these lengths write; requests with prompts of `late_lengths` join
    after five steps."""
    engine = InferenceEngine(
        model, options, device=device, cache=CacheConfig(block_size=block_size, prefix_cache=False)
    )
    params = SamplingParams(max_new_tokens=num_steps + 8, stop_on_eos=False)

    def arrive(lengths: Sequence[int]) -> None:
        for prompt in steady_prompts(len(lengths), lengths):
            engine.add_request(prompt, params)

    arrive(lengths)
    if not late_lengths:
        return record_positions(engine, num_steps)
    alone = record_positions(engine, 5)
    arrive(late_lengths)
    return alone.then(record_positions(engine, num_steps - 5))
