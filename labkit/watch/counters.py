"""What an engine's counters say of its steps: how blocks were made ready, and how a batch was written."""

from collections import Counter
from typing import NamedTuple

from labkit.engine import InferenceEngine

READY_PATHS = ("in_place", "boundary", "copy_on_write", "first")  # by the names of the engine's counter


def record_paths(engine: InferenceEngine, num_steps: int) -> list[dict[str, int]]:
    """Run `num_steps` steps; for each step, how many tokens took each of READY_PATHS. Tokens are not kept.

    All layers move in step, so a token is counted once, not once per layer.
    """
    steps = []
    before = engine.stats().append_paths
    for _ in range(num_steps):
        engine.step()
        after = engine.stats().append_paths
        taken = Counter(after) - Counter(before)
        steps.append({path: taken[path] // engine.kv_manager.num_tables for path in READY_PATHS})
        before = after
    return steps


WRITES = ("indexed", "generic", "full_batch", "identity_pos")  # by the names of the engine's counter


class PositionsStep(NamedTuple):
    """One decode step: the slot in its last block that each request's token went to, and the write used."""

    slots: dict[int, int]  # by request id
    path: str


class Positions(NamedTuple):
    """The decode steps of a run, on blocks of `block_size` tokens."""

    block_size: int
    steps: tuple[PositionsStep, ...]

    @property
    def num_equal(self) -> int:
        """Steps in which all requests write to the same slot."""
        return sum(len(set(step.slots.values())) == 1 for step in self.steps)


def record_positions(engine: InferenceEngine, num_steps: int) -> Positions:
    """Run until `num_steps` more steps have decoded; tokens made are not kept. Steps that admit do not count.

    Raises ValueError if the engine runs out of work, or if it writes token by token, as rungs 00 and 01 do.
    """
    block_size = engine.kv_manager.block_size
    steps: list[PositionsStep] = []
    while len(steps) < num_steps:
        if not engine.has_work:
            raise ValueError(f"the requests ended after {len(steps)} of {num_steps} decode steps")
        before = engine.stats()
        slots = {r.request_id: s.num_tokens % block_size for r, s in engine.scheduler.running.items()}
        engine.step()
        after = engine.stats()
        if after.counters.decode_steps > before.counters.decode_steps:
            taken = Counter(after.append_paths) - Counter(before.append_paths)
            writes = [write for write in WRITES if taken[write]]
            if len(writes) != 1:
                raise ValueError(f"a step took the writes {writes}; it needs one, the same in all layers")
            steps.append(PositionsStep(slots, writes[0]))
    return Positions(block_size, tuple(steps))
