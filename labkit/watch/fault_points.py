"""Where a step can fail: every call of an engine's parts that may be watched."""

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.step.chunk import ChunkInFlight
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.engine.step.staging import PinnedStaging, PinnedTokens, TokenCopy
from labkit.watch.launches import device_step_of
from labkit.watch.replaced import watch_points_of

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
