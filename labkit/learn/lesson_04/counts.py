"""Lesson 04: index tensors, positions and small gains, counted."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import combinations

import numpy as np
import torch

from labkit.bench.cost_cards import count_operators
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.learn.gates.gate import raised
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.results import speedup_interval
from labkit.watch import Positions, record_accesses, record_positions, steady_decode, steady_prompts

# --- what a step's index tensors cost, counted here and recorded on a GPU ------------------------------

PROMPTS = (8, (20, 23))  # requests, and the lengths of their prompts in turn


def index_tensors_of(engine: InferenceEngine) -> str:
    """How many index tensors a steady decode step of PROMPTS makes on this engine, as a sentence; also why
    they were not counted."""
    try:
        # A kernel that the gate has refused may store anywhere: nothing outside of its tensors is touched.
        guarded = record_accesses() if engine.device.type == "cpu" else nullcontext()
        with guarded, steady_decode(engine, steady_prompts(*PROMPTS)):
            _, count = count_operators(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"index tensors in a step: not counted, because the engine {raised(error)}"
    return f"index tensors in a step: {count}"


# --- where the requests of a small engine write, step after step ---------------------------------------


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


# --- what a few runs can say about a gain of a percent or two ------------------------------------------


def relabelled(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """An exact permutation test (Fisher, 1935): in how many of all ways to call some of these runs `after`
    the means lie at least as far apart, in either direction, as with the true labels; and how many ways there
    are."""
    runs = [*before, *after]

    def apart(picked: Sequence[int]) -> float:
        others = [run for i, run in enumerate(runs) if i not in picked]
        return abs(np.mean([runs[i] for i in picked]) - np.mean(others))

    ways = list(combinations(range(len(runs)), len(after)))
    true_labels = apart(range(len(before), len(runs)))
    return sum(bool(apart(way) >= true_labels * (1 - 1e-12)) for way in ways), len(ways)


def spread(*sides: Sequence[float]) -> float:
    """How far runs of one kind scatter: the standard deviation over the mean, pooled over the sides."""
    variances = [np.var(runs, ddof=1) / np.mean(runs) ** 2 for runs in sides]
    return float(np.sqrt(np.mean(variances)))


def detected(runs: int, spread: float, gain: float, experiments: int = 50, seed: int = 0) -> float:
    """The share of simulated comparisons that come out "faster" or "slower".

    Each has `runs` runs per side that scatter by `spread`, and a true speed-up of 1 + gain.
    """
    generator = np.random.default_rng(seed)
    found = 0
    for _ in range(experiments):
        before, after = generator.normal(1, spread, (2, runs)) / [[1], [1 + gain]]
        low, high = speedup_interval(before.tolist(), after.tolist())
        found += low > 1 or high < 1
    return found / experiments
