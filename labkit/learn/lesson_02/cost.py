"""Lesson 02: what an append asks of the manager and the cache, and where the batched write begins to pay."""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from torch import Tensor

from labkit.bench.cost_cards import count_calls
from labkit.engine import InferenceEngine
from labkit.learn.gates.gate import raised
from labkit.results import HostTime
from labkit.watch import LaunchRecorder, steady_decode, steady_prompts

NUM_REQUESTS = 8


def step_work(engine: InferenceEngine) -> str:
    """What two decode steps of 8 requests do, one in which all last blocks have room and one in which all are
    full: how often keys are written into the cache, and how often the block manager is called.
    """
    prompts = steady_prompts(NUM_REQUESTS, lengths=(engine.kv_manager.block_size - 5,))
    try:
        with steady_decode(engine, prompts, warmup_steps=3):
            with_room = _work_of_a_step(engine)
            engine.step()  # into the last slot
            at_a_boundary = _work_of_a_step(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"work: not counted, because the engine {raised(error)}"
    return f"{NUM_REQUESTS} requests with room: {with_room}; all at a boundary: {at_a_boundary}"


def _work_of_a_step(engine: InferenceEngine) -> str:
    k_cache = engine.kv_manager.k_cache
    addresses = range(k_cache.data_ptr(), k_cache.data_ptr() + k_cache.nbytes)
    with LaunchRecorder() as seen:
        calls, _ = count_calls(engine)
    in_place = [launch.args[0] for launch in seen.launches if launch.name.endswith("_")]  # as in index_put_
    writes = sum(isinstance(written, Tensor) and written.data_ptr() in addresses for written in in_place)
    return f"{writes} writes, {calls} calls"


def crossover(before: Sequence[HostTime], after: Sequence[HostTime]) -> float | None:
    """The batch size from which `after` costs the host less than `before`: where the straight lines between
    the measured sizes cross; None if they do not.

    Both were measured at the same batch sizes, in any order.
    """
    by_size = (sorted(times, key=attrgetter("batch_size")) for times in (before, after))
    lost = [(b.batch_size, a.step_us - b.step_us) for b, a in zip(*by_size, strict=True)]
    for (size, more), (next_size, less) in pairwise(lost):
        if more > 0 >= less:
            return size + (next_size - size) * more / (more - less)
    return None
