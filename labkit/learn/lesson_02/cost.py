"""Lesson 02: what an append asks of the manager and the cache, and where the batched write begins to pay."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor
from torch._ops import OpOverload

from labkit.bench.cost_cards import count_calls
from labkit.engine import InferenceEngine
from labkit.learn.gates.gate import raised
from labkit.results import HostTime
from labkit.watch import steady_decode, steady_prompts
from labkit.watch.operators import OperatorMode

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
    with KeyWrites(engine.kv_manager.k_cache) as writes:
        calls, _ = count_calls(engine)
    return f"{writes.count} writes, {calls} calls"


class KeyWrites(OperatorMode):
    """Counts the operators that write into the cache of keys inside its `with`."""

    def __init__(self, k_cache: Tensor) -> None:
        super().__init__()
        self.count = 0
        self._addresses = range(k_cache.data_ptr(), k_cache.data_ptr() + k_cache.nbytes)

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Count an operator that changes its first argument, if that lies in the cache."""
        in_place = func.name().partition(".")[0].endswith("_")  # as in aten::index_put_
        self.count += in_place and isinstance(args[0], Tensor) and args[0].data_ptr() in self._addresses


def crossover(before: Sequence[HostTime], after: Sequence[HostTime]) -> float | None:
    """The batch size from which `after` costs the host less than `before`: where the straight lines between
    the measured sizes cross; None if they do not.

    Both were measured at the same batch sizes, in any order.
    """

    def by_size(times: Sequence[HostTime]) -> list[HostTime]:
        return sorted(times, key=lambda time: time.batch_size)

    lost = [
        (b.batch_size, a.step_us - b.step_us) for b, a in zip(by_size(before), by_size(after), strict=True)
    ]
    for (size, more), (next_size, less) in pairwise(lost):
        if more > 0 >= less:
            return size + (next_size - size) * more / (more - less)
    return None
