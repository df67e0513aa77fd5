"""Where a step can fail: every call of an engine's parts that may be watched. And a NaN put there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.step.chunk import ChunkInFlight
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.engine.step.staging import PinnedStaging, PinnedTokens, TokenCopy
from labkit.watch.launches import device_step_of
from labkit.watch.replaced import replaced, watch_points_of

FaultPoint = tuple[object, str]  # an owner, and the name of what is called there, as `replaced` takes them


def fault_points(engine: InferenceEngine) -> dict[str, FaultPoint]:
    """The calls in an engine's steps that can be made to fail, by class and name ("BlockTables.build").

    A watch point that a class declares is here without being listed. What `planted_failure` takes.
    """
    return {
        f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{name}": (owner, name)
        for owner in parts_of(engine)
        for name in watch_points_of(owner)
        if callable(getattr(owner, name))
    }


def parts_of(engine: InferenceEngine) -> list[object]:
    """Everything that works in the engine's steps; a class where a step makes its instances."""
    step, manager = engine.decode_step, engine.kv_manager
    parts: list[object] = [
        engine,
        engine.scheduler,
        engine.prefix_cache,
        engine.model.network,
        engine.readback,
        engine.prefill,
        InferenceSession,
    ]
    parts += [manager, manager.kv_write, step]
    if isinstance(step, ResidentDecodeStep):
        device_step = device_step_of(engine)
        parts += [step.slots, device_step, device_step.attention]
        parts += [PinnedStaging, PinnedTokens, StepInFlight, TokenCopy]
    else:
        parts += [step.block_tables, step.kv_append]
    if isinstance(engine.prefill, PackedPrefill):
        chunk_step = engine.prefill.chunk_step
        parts += [chunk_step, chunk_step.device_step.attention, chunk_step.sampler, ChunkInFlight]
    return [part for part in parts if part is not None]


@contextmanager
def planted_nan(
    owner: object, name: str, at_call: int = 0, row: int = 0, look: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Inside the block, the call of `owner.name` with the number `at_call` gives NaN for one request.

    owner.name: gives a tensor [B, ...] with a row per request. row: of the request, counted round from 0.
    look: called just before. Raises OptionError if the owner does not let `name` be watched.
    """
    calls = 0

    def breaking(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            nonlocal calls
            calls += 1
            made = inner(*args, **kwargs)
            if calls - 1 == at_call:
                look()
                made = made.clone()
                made[row % len(made)] = torch.nan
            return made

        return call

    with replaced(owner, name, breaking):
        yield
