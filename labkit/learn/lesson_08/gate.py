"""Lesson 08: a device's step that is captured once, and replayed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, raised, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import replays_proven, steps_proven
from labkit.learn.gates.schedule import broken_behind
from labkit.watch.replaced import replaced

LARGEST_BATCH = 6  # no power of two
NOT_FOUND = (LookupError, StopIteration, ValueError)  # what looking for a graph raises


def every_batch(build: Build) -> None:
    """Batches of every size, greedy and not, are replays that make the plain step's tokens."""
    engine = build(
        small_model(),
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=30, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=LARGEST_BATCH, prefill_max_batch_size=LARGEST_BATCH),
    )
    try:
        with graphs_found(engine), replays_proven(engine), steps_proven(engine):
            for params in MIXED[:2]:
                for i in range(LARGEST_BATCH):  # which ends one step after the one before
                    engine.add_request([7 + i] * (1 + i % 3), replace(params, max_new_tokens=2 + i))
                while engine.has_work:
                    engine.step()
    except Exception as error:
        if broken := broken_behind(error):
            raise broken from error
        raise


@contextmanager
def graphs_found(engine: InferenceEngine) -> Iterator[None]:
    """Inside the block, a step that finds no graph for its batch is a broken contract."""

    def launching(inner: Callable) -> Callable:
        def launch(batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
            try:
                return inner(batch_size, max_context_len, is_greedy)
            except NOT_FOUND as error:
                kind = "greedy" if is_greedy else "drawing"
                raise BrokenContract(
                    f"every batch has a graph: a {kind} batch of {batch_size}, in an engine for "
                    f"{LARGEST_BATCH}, {raised(error)}. Greedy batches and those that draw need a graph "
                    "each; a batch between two buckets takes the larger one's; and the largest bucket must "
                    "have as many rows as the engine has slots."
                ) from error

        return launch

    with replaced(engine.decode_step, "device_step", launching):
        yield


GATE = Gate(
    ("launch",), LADDER["07"].options, (), (replays_proven, steps_proven), MIXED, trials=(every_batch,)
)
