"""Lesson 09: a layer in few kernels."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine
from labkit.kernels import paged_attention_append_plain
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.learn.lesson_09.proofs import check_numbers
from labkit.learn.lesson_09.steps import TenKernelStep, whose_kernels
from labkit.watch.launches import count_kernels, device_step_of, log_step
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

PROMPTS = ((1, 2, 3), (7, 8))  # of the step whose kernels are counted
PER_LAYER, AROUND = 5, 5  # kernels, at most
LONG_AND_SHORT = (3, 9, 20, 50)  # tokens of the prompts of the step whose attention is compared
ATTENTION = "attention is one softmax over all of a request's tokens"


def right_attention(build: Build) -> None:
    """A trial: attention over texts of several lengths is what its plain twin is, however it is launched."""
    engine = engine_of(build)
    step = device_step_of(engine)
    with (
        replaced(step.attention, "attention", attention_proven),
        replaced(engine.decode_step, "device_step", lambda _: step),  # not a graph of it, captured before
        steady_decode(engine, steady_prompts(4, LONG_AND_SHORT), warmup_steps=1),
    ):
        pass


def attention_proven(inner: Callable) -> Callable:
    """A step's attention that is compared with its plain twin in every call."""

    def attention(*arguments: Any) -> Tensor:
        query, key, value, k_cache, v_cache, *others = arguments
        expected = paged_attention_append_plain(query, key, value, k_cache.clone(), v_cache.clone(), *others)
        made = inner(*arguments)
        _, context_lens, slot_mapping, _ = others
        lengths = context_lens[slot_mapping].tolist()
        where = f"in a step whose requests have {lengths} tokens in the cache"
        hint = "The parts of all programs count, each scaled by its own largest score."
        check_numbers(ATTENTION, where, made.flatten(1), expected.flatten(1), hint, "request")
        return made

    return attention


def engine_of(build: Build) -> InferenceEngine:
    """An engine with blocks of 4 tokens."""
    return build(small_model(), dtype=torch.float32, cache=CacheConfig(block_size=4, prefix_cache=False))


def few_kernels(build: Build) -> None:
    """Raise BrokenContract if a greedy step is more kernels than five per layer and five around them.

    Attention counts as one, even if it is a kernel for parts and one that merges them.
    """
    engine = engine_of(build)
    launches = log_step(engine, PROMPTS).launches
    num_layers = engine.model.config.num_layers
    as_one = [launch._replace(kernels=1) if launch.name == "attention" else launch for launch in launches]
    count, most = count_kernels(as_one), PER_LAYER * num_layers + AROUND
    if count > most:
        kernels: Counter[str] = Counter()
        for launch in as_one:
            kernels[launch.name] += launch.kernels
        told = ", ".join(f"{name} {number}" for name, number in kernels.most_common())
        raise BrokenContract(
            f"a step is few kernels: {count} for {num_layers} layers, at most {most}, five per layer and "
            f"five around them. Launched were: {told}. Work that a neighbouring kernel can do, such as "
            "norm, bias, GELU and residual, needs no launch of its own. (Attention counts as one, and so "
            "does each of FusedDeviceStep's `kernels`.)"
        )


def own_kernels(build: Build) -> None:
    """Raise BrokenContract for the reader's step if it runs a kernel of the package's where the reader has
    written one. A step that is built on none of the lesson's may run either."""
    engine = engine_of(build)
    if isinstance(device_step_of(engine), TenKernelStep) and "not yours" in (told := whose_kernels(engine)):
        raise BrokenContract(
            f"the step runs the kernels of steps 2 and 3: {told}. `with_mine` returns the attention and the "
            "kernels with yours in them: assign both, and pass them to `super().__init__`."
        )


GATE = Gate(
    ("layer_kernels",),
    LADDER["08"].options,
    watches=(steps_proven,),
    samplings=MIXED,
    trials=(right_attention,),
    costs=(few_kernels, own_kernels),
    interpreted=("layer_kernels",),
)
