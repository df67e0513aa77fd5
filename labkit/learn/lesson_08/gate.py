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
from labkit.watch.replaced import noting, replaced

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


@torch.inference_mode()
def smallest_bucket(build: Build) -> None:
    """A trial: a batch is replayed in the smallest graph that holds it. What rows a replay has is seen in the
    slots that it leaves a token in; no request has them, so all of them are empty."""
    model, captured = small_model(), set[int]()

    def note(_: object, last_token_ids: Tensor, *__: object) -> None:
        captured.add(len(last_token_ids))

    with replaced(type(model.network), "decode_one_token", noting(note)):
        engine = build(model, dtype=torch.float32, scheduler=SchedulerConfig(max_batch_size=LARGEST_BATCH))
    step, slots = engine.decode_step.device_step, engine.decode_step.slots
    slots.slot_mapping.copy_(torch.arange(LARGEST_BATCH))
    slots.context_lens.fill_(-1)
    for batch_size in range(1, LARGEST_BATCH + 1):
        ran = torch.zeros(LARGEST_BATCH, dtype=torch.bool, device=slots.slot_mapping.device)
        for token_id in (1, 2):  # a row may make the token that it has
            slots.last_token_ids.fill_(token_id)
            step(batch_size, 0, True)
            ran |= slots.last_token_ids[:LARGEST_BATCH] != token_id
        rows, fits = int(ran.sum()), min((n for n in captured if n >= batch_size), default=0)
        if fits and rows > fits:
            raise BrokenContract(
                f"a batch takes the next larger bucket: a batch of {batch_size} ran with {rows} rows, and a "
                f"graph of {fits} was captured. {rows - batch_size} rows are padding, expected "
                f"{fits - batch_size}: of the sizes that hold the batch, take the smallest."
            )


GATE = Gate(
    ("launch",),
    LADDER["07"].options,
    (),
    (replays_proven, steps_proven),
    MIXED,
    trials=(every_batch,),
    costs=(smallest_bucket,),
)
