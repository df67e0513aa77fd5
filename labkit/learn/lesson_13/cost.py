"""Lesson 13: what a join costs: stores of keys and values, and weights that are read again for each chunk."""

from collections.abc import Sequence

from torch._ops import OpOverload

from labkit.bench.limit import on_paper
from labkit.engine import InferenceEngine
from labkit.engine.packed_prefill import PackedPrefill
from labkit.learn.lesson_13.served import Asks, add_all
from labkit.watch.operators import OperatorMode, storage, tensors_of
from labkit.watch.work import count_calls_of


class Stores(OperatorMode):
    """Operators that write into the cache."""

    def __init__(self, engine: InferenceEngine) -> None:
        super().__init__()
        self.count = 0
        self._cache = {storage(cache) for cache in (engine.kv_manager.k_cache, engine.kv_manager.v_cache)}

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        name = func.overloadpacket.__name__
        written = tensors_of(args[:1])
        self.count += name.endswith("_") and bool(written) and storage(written[0]) in self._cache


def num_stores(engine: InferenceEngine, asked: Asks) -> int:
    """How often keys and values are stored when these requests join an empty engine together.

    Operators of the padded prefill; of the packed one calls of its kernel, whose plain twin has several."""
    add_all(engine, [(prompt, 1) for prompt, _ in asked])  # with one new token each: no decode step stores
    if isinstance(engine.prefill, PackedPrefill):
        attention = engine.prefill.chunk_step.device_step.attention
        with count_calls_of(attention, {"kv_append": "stores"}) as calls:
            engine.step()
        return calls["stores"]
    with Stores(engine) as stores:
        engine.step()
    return stores.count


def weight_megabytes(chunk_sizes: Sequence[int], prompt_len: int) -> dict[int, tuple[int, float]]:
    """Chunks of a prompt by their size, and megabytes of GPT-2's matrices in half precision that are read per
    prompt token: each chunk reads all of them, the head among them."""
    config = on_paper().config
    matrices = 2 * (config.num_matrix_weights + config.vocab_size * config.hidden_size)
    chunks = {size: -(-prompt_len // size) for size in chunk_sizes}
    return {size: (count, count * matrices / prompt_len / 1e6) for size, count in chunks.items()}
