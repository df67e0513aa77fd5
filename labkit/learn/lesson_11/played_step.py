"""Lesson 11: a step whose halves go to streams that are played, with kernels that tell their lane."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import PLAIN, FusedDeviceStep, FusedKernels
from labkit.engine.step.lanes import NUM_LANES, Lane, LanedDeviceStep
from labkit.kernels import paged_attention_append_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, small_model
from labkit.learn.lesson_11.streams import PlainKernel, PlayedStreams, StreamLaunch
from labkit.model import LanguageModel
from labkit.watch.capture import longest_possible
from labkit.watch.launches import device_step_of
from labkit.watch.operators import storage
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

LEAST_ROWS = 4  # of a batch that is cut, in place of the engine's 32
NUM_REQUESTS, NUM_SLOTS = 6, 8
LENGTHS = (3, 9, 20, 13)  # tokens of the prompts: the next token of each has room in its last block


class PlayedStep(NamedTuple):
    """What a step's layers made, what a step that is not cut makes, and the launches, in order."""

    made: Tensor  # [B, E]
    expected: Tensor  # [B, E]
    slot_mapping: Tensor  # [B]
    padding_slot: int
    launches: list[StreamLaunch]


@contextmanager
def steps_to_play(build: Build, model: LanguageModel | None = None) -> Iterator["StepPlayer"]:
    """Inside the block, an engine with the reader's part serves a batch, whose next step can be played.

    model: the gates' small one by default.

    Raises BrokenContract for a part that is no `LanedDeviceStep`.
    """
    engine: InferenceEngine = build(
        model or small_model(),
        dtype=torch.float32,
        cache=CacheConfig(block_size=8, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=NUM_SLOTS, prefill_max_batch_size=NUM_SLOTS),
    )
    step = device_step_of(engine)
    if not isinstance(step, LanedDeviceStep):
        raise BrokenContract(
            f"a large batch goes through the layers in two halves: {type(step).__name__} has no lanes. Your "
            "class has LanedDeviceStep, or InHalves, as its base."
        )
    prompts = steady_prompts(NUM_REQUESTS, LENGTHS)
    with steady_decode(engine, prompts, warmup_steps=1), torch.inference_mode():
        yield StepPlayer(step)


class StepPlayer:
    """Plays the next step of an engine, again and again: no slot advances."""

    def __init__(self, step: LanedDeviceStep) -> None:
        self.step = step
        self.kv_manager = step.attention.kv_manager
        plain = AttendAndWrite(self.kv_manager, paged_attention_append_plain)
        self.whole = FusedDeviceStep(step.slots, step.network, plain, PLAIN)

    def play(self, batch_size: int) -> PlayedStep:
        """The layers of a batch, in streams that are played. Raises BrokenContract for a race, and whatever
        the part raises."""
        slots, longest = self.step.slots, longest_possible(self.step)
        slot_mapping = slots.slot_mapping[:batch_size]
        expected = self.whole.through_layers(slot_mapping, longest)
        names = {
            storage(getattr(slots, name)): f"slots.{name}" for name in ("context_lens", "last_token_ids")
        }
        streams = PlayedStreams(names, (self.kv_manager.k_cache, self.kv_manager.v_cache))
        lanes = [self._lane(streams, i) for i in range(NUM_LANES)]
        step = type(self.step)(slots, self.step.network, lanes)
        step.least_rows = LEAST_ROWS
        with replaced(step, "streams", lambda _: streams), streams:
            streams.launch("the step before", (), (slots.context_lens, slots.last_token_ids))
            made = step.through_layers(slot_mapping, longest)
            if isinstance(made, Tensor):
                F.layer_norm(made, made.shape[-1:])  # the step's next kernel
        return PlayedStep(made, expected, slot_mapping, slots.padding_slot, streams.launches[1:])

    def _lane(self, streams: PlayedStreams, number: int) -> Lane:
        """A lane of plain twins, as launches, with workspaces that are only noted."""
        split_k, splits = torch.zeros(1), torch.zeros(1)
        streams.names[storage(split_k)] = f"the split-K workspace of lane {number}"
        streams.names[storage(splits)] = f"attention's workspace of lane {number}"
        kernels = {name: PlainKernel(kernel) for name, kernel in PLAIN._asdict().items()}
        kernels["linear_residual"] = PlainKernel(PLAIN.linear_residual, split_k)
        attention = PlainKernel(paged_attention_append_plain, splits)
        return Lane(
            AttendAndWrite(self.kv_manager, streams.as_kernel("attention", attention)),
            FusedKernels(**{name: streams.as_kernel(name, kernel) for name, kernel in kernels.items()}),
        )
