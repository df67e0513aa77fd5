"""Lesson 09: a layer in few kernels."""

import copy
from collections import Counter
from contextlib import ExitStack
from functools import cache

import torch

from labkit.engine import CacheConfig, InferenceEngine
from labkit.engine.step.fused import FusedDeviceStep
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract, Unattempted
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.learn.lesson_09.proofs import attention_proven, layer_proven
from labkit.learn.lesson_09.steps import TenKernelStep, whose_kernels
from labkit.model import LanguageModel
from labkit.watch.launches import count_kernels, device_step_of, log_step
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

PROMPTS = ((1, 2, 3), (7, 8))  # of the step whose kernels are counted
PER_LAYER, AROUND = 5, 5  # kernels, at most
LONG_AND_SHORT = (3, 9, 20, 50)  # tokens of the prompts of the step whose kernels are compared


@cache
def uneven_model() -> LanguageModel:
    """The small model with biases, and with LayerNorms that change something: fresh ones have biases of 0 and
    weights of 1, so a layer that forgets one would be right."""
    model = copy.deepcopy(small_model())
    like = torch.Generator().manual_seed(3)
    for parameter in model.network.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=like)
    return model


def engine_of(build: Build, model: LanguageModel) -> InferenceEngine:
    """An engine with blocks of 4 tokens."""
    return build(model, dtype=torch.float32, cache=CacheConfig(block_size=4, prefix_cache=False))


def right_kernels(build: Build) -> None:
    """Raise BrokenContract for an attention or a layer that is not what its plain twin is, whichever way the
    step is launched. Whatever else is wrong is left to the schedules."""
    engine = engine_of(build, uneven_model())
    step = device_step_of(engine)
    try:
        with ExitStack() as stack:
            if isinstance(step, FusedDeviceStep):
                stack.enter_context(replaced(step, "layer", layer_proven(step)))
            stack.enter_context(replaced(step.attention, "attention", attention_proven))
            # Not a graph of it, which was captured before.
            stack.enter_context(replaced(engine.decode_step, "device_step", lambda _: step))
            stack.enter_context(steady_decode(engine, steady_prompts(4, LONG_AND_SHORT), warmup_steps=1))
    except (BrokenContract, Unattempted):
        raise
    except Exception:
        return


def few_kernels(build: Build) -> None:
    """Raise BrokenContract if a greedy step is more kernels than five per layer and five around them.

    Attention counts as one, even if it is a kernel for parts and one that merges them.
    """
    engine = engine_of(build, small_model())
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
    engine = engine_of(build, small_model())
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
    trials=(right_kernels,),
    costs=(few_kernels, own_kernels),
    interpreted=("layer_kernels",),
)
