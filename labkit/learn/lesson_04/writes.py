"""Lesson 04: the package's identity-pos write, one that is wrong, and index tensors and positions counted."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from labkit.bench.cost_cards import count_operators
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.kernels import kv_append_identity_pos_plain, kv_append_triton_identity_pos
from labkit.kvcache import FullBatchWrite
from labkit.kvcache.kv_write import index_tensor, is_constant, runs_triton
from labkit.learn.gates.gate import raised
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.watch import Positions, record_accesses, record_positions, steady_decode, steady_prompts
from labkit.watch.counters import PositionsStep


def index_tensors_of(engine: InferenceEngine) -> str:
    """How many index tensors a steady decode step of 8 requests makes on this engine, as a sentence; also why
    they were not counted."""
    try:
        # A kernel that the gate has refused may store anywhere: nothing outside of its tensors is touched.
        guarded = record_accesses() if engine.device.type == "cpu" else nullcontext()
        with guarded, steady_decode(engine, steady_prompts(8, (20, 23))):
            _, count = count_operators(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"index tensors in a step: not counted, because the engine {raised(error)}"
    return f"index tensors in a step: {count}"


def watch_positions(
    model: LanguageModel,
    options: EngineOptions,
    device: torch.device,
    lengths: Sequence[int],
    late_lengths: Sequence[int] = (),
) -> Positions:
    """Record where requests with prompts of these lengths write, in blocks of 8 and for 24 steps; requests
    with prompts of `late_lengths` join after five steps."""
    cache = CacheConfig(block_size=8, prefix_cache=False)
    engine = InferenceEngine(model, options, device=device, cache=cache)
    params = SamplingParams(max_new_tokens=32, stop_on_eos=False)
    recorded: list[PositionsStep] = []
    for arriving, num_steps in ((lengths, 5), (late_lengths, 19)):
        for prompt in steady_prompts(len(arriving), arriving):
            engine.add_request(prompt, params)
        recorded += record_positions(engine, num_steps).steps
    return Positions(cache.block_size, tuple(recorded))


def write_identity_pos(
    k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, blocks: Tensor, slots: Tensor
) -> None:
    """The package's write of a whole batch, request b to slot slots[b] of block blocks[b]: its kernel where
    kernels run compiled, elsewhere its plain twin. Raises TypeError for an index that is no tensor."""
    for name, index in (("blocks", blocks), ("slots", slots)):
        if not isinstance(index, Tensor):
            found = f"{name} is a {type(index).__name__}"
            raise TypeError(f"{found}, expected an index tensor: self.index(name, numbers) makes one")
    write = kv_append_triton_identity_pos if runs_triton(key.device) else kv_append_identity_pos_plain
    write(k_cache, v_cache, key, value, blocks, slots)


class KeptByLength(FullBatchWrite):
    """Keeps index tensors, and takes a kept one for every list that is as long as its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.device = device
        self.kept: dict[tuple[str, int], Tensor] = {}

    def index(self, name: str, numbers: Sequence[int]) -> Tensor:
        """The numbers as a tensor, or what was kept of other ones."""
        key = name, len(numbers)
        if key not in self.kept:
            self.kept[key] = index_tensor(numbers, self.device)
        return self.kept[key]

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos) -> str:
        """Write the requests of batch_idx, with arguments as in `KVWrite`; returns the path taken."""
        to = k_cache_layer, v_cache_layer, key_new, value_new
        if len(batch_idx) < len(key_new) or is_constant(pos):
            return super().write(*to, batch_idx, block_idx, pos)
        write_identity_pos(*to, self.index("blocks", block_idx), self.index("slots", pos))
        return "identity_pos"
