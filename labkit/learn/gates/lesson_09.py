"""Lesson 09: a layer in few kernels."""

from collections import Counter

import torch

from labkit.engine import CacheConfig, InferenceEngine
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.watch.launches import count_kernels, log_step

PROMPTS = ((1, 2, 3), (7, 8))  # of the step whose kernels are counted
PER_LAYER, AROUND = 5, 5  # kernels, at most


def few_kernels(build: Build) -> None:
    """Raise BrokenContract if a greedy step is more kernels than five per layer and five around them."""
    engine: InferenceEngine = build(
        small_model(), dtype=torch.float32, cache=CacheConfig(block_size=4, prefix_cache=False)
    )
    launches = log_step(engine, PROMPTS).launches
    num_layers = engine.model.config.num_layers
    count, most = count_kernels(launches), PER_LAYER * num_layers + AROUND
    if count > most:
        names = Counter(launch.name for launch in launches).most_common()
        told = ", ".join(f"{name} {times}" for name, times in names)
        raise BrokenContract(
            f"a step is few kernels: {count} for {num_layers} layers, at most {most}, five per layer and "
            f"five around them. Launched were: {told}. What a kernel can do on its way, such as norm, bias, "
            "GELU and residual, has no launch of its own. (FusedDeviceStep's `kernels` count as one each.)"
        )


GATE = Gate(
    "layer_kernels", LADDER["08"].options, watches=(steps_proven,), samplings=MIXED, costs=(few_kernels,)
)
