"""Lesson 07: requests that come, share and go, and whether the layers' tables ever differ."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkit.engine import InferenceEngine, SamplingParams
from labkit.watch.blocks import PoolUse, block_places, pool_use


def eventful_schedule(engine: InferenceEngine) -> Iterator[None]:
    """A generator that runs one step at a time, while requests join, share a prompt, copy, are preempted,
    cancelled and finish. Checks the engine's integrity after each."""
    generator = np.random.default_rng(0)
    ids: list[int] = []
    for step in range(60):
        if step % 4 == 0:
            prompt = [1, 2, 3, 4, 5, 6] if step % 8 else generator.integers(1, 200, 5).tolist()
            params = SamplingParams(max_new_tokens=int(generator.integers(4, 20)), stop_on_eos=False)
            ids.append(engine.add_request(prompt, params))
        if step == 30 and engine.scheduler.running:
            engine.cancel(next(iter(engine.scheduler.running)).request_id)
        engine.step()
        engine.check_integrity()
        yield


@dataclass(frozen=True)
class Agreement:
    """What a run of `eventful_schedule` showed: whether the tables of different layers ever differed, and
    what happened in it."""

    steps: int
    lists: int  # lists of block ids looked at, over all requests and steps
    different: int  # lists that name other places than layer 0's
    events: dict[str, int]
    uses: tuple[PoolUse, ...]


def run_schedule(engine: InferenceEngine) -> Agreement:
    """Run `eventful_schedule` to its end, and compare the tables of all layers after each step."""
    lists = different = 0
    uses = []
    for _ in eventful_schedule(engine):
        for session in engine.scheduler.running.values():
            first, *others = block_places(engine, session)
            lists += 1 + len(others)
            different += sum(other != first for other in others)
        uses.append(pool_use(engine))
    stats = engine.stats()
    tables = engine.kv_manager.num_tables
    events = {path: stats.append_paths.get(path, 0) // tables for path in ("boundary", "copy_on_write")}
    events |= {
        "preemptions": stats.counters.preemptions,
        "requests ended": sum(stats.counters.finished.values()),
    }
    return Agreement(len(uses), lists, different, events, tuple(uses))
