"""The device's part of a decode step as CUDA graphs (rung 08): captured once, then replayed as a whole."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from tqdm import tqdm

from labkit.engine.sampling import Draws
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.scored import GraphMemory, logits_told
from labkit.garbage import uncollected

WARMUP_RUNS = 2  # of a step before it is captured: kernels are compiled, libraries prepare what they keep

CapturedStep = tuple[torch.cuda.CUDAGraph, Tensor]  # a graph, and the token ids [B] that a replay leaves


def batch_buckets(max_batch_size: int) -> list[int]:
    """The batch sizes that have a graph, rising: a step takes the next larger one and pads it.

    1, 2, 4, 8, 16, and from there on at most half as much again.
    """
    buckets = [size for size in (1, 2, 4, 8) if size < max_batch_size]
    size = 16
    while size < max_batch_size:
        buckets += [size, size * 3 // 2]
        size *= 2
    return sorted({*(size for size in buckets if size < max_batch_size), max_batch_size})


class GraphedStep:
    """A `DeviceStep` captured in CUDA graphs: for each bucket one per family, such as greedy batches.

    All are captured when the engine is made, never in the middle of serving; they share one memory pool,
    because no two of them run at once.
    """

    sizes = staticmethod(batch_buckets)  # of batches that have a graph

    def __init__(self, device_step: DeviceStep) -> None:
        self.device_step = device_step
        self.buckets = self.sizes(len(device_step.slots.slot_mapping))
        self.families = device_step.families
        self.graphs: dict[tuple[int, Draws], CapturedStep] = {}
        self._logits: dict[tuple[int, Draws], GraphMemory] = {}
        places: list[GraphMemory] = []
        told = logits_told(device_step, lambda logits: places.append(GraphMemory(logits)))
        with cuda_captures(device_step) as capture, told:
            # The largest first, so that the smaller find the memory that they need in its pool.
            for bucket in tqdm(self.buckets[::-1], "capturing CUDA graphs", leave=False, disable=None):
                for draws in self.families:
                    self.graphs[bucket, draws] = capture(bucket, draws)
                    if places:
                        self._logits[bucket, draws] = places[-1]

    def __call__(self, batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        """The next token ids [B], by a replay: those of `DeviceStep`, valid until the next call."""
        bucket = next(size for size in self.buckets if size >= batch_size)
        graph, token_ids = self.graphs[bucket, draws]
        graph.replay()
        return token_ids[:batch_size]

    def logits_left(self, batch_size: int, draws: Draws) -> Tensor | None:
        """The logits [B, V] that the last call, with these arguments, sampled from; valid until the next.
        None for a step that did not tell them."""
        bucket = next(size for size in self.buckets if size >= batch_size)
        memory = self._logits.get((bucket, draws))
        return None if memory is None else memory.tensor()[:batch_size]


@contextmanager
def cuda_captures(device_step: DeviceStep) -> Iterator[Callable[[int, Draws], CapturedStep]]:
    """Inside the block, its value captures a step of so many rows: `capture(bucket, draws)`.

    All captures share a memory pool, so no two of the graphs may run at once. No request may have a slot yet:
    then a run changes nothing but the padding slot.
    """
    pool, warmup, capturing = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), torch.cuda.Stream()

    def capture(bucket: int, draws: Draws) -> CapturedStep:
        warmup.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warmup):
            for _ in range(WARMUP_RUNS):
                device_step(bucket, 0, draws)
        torch.cuda.current_stream().wait_stream(warmup)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads may go on meanwhile, with the steps of another engine for example.
        with torch.cuda.graph(graph, pool=pool, stream=capturing, capture_error_mode="thread_local"):
            token_ids = device_step(bucket, 0, draws)
        return graph, token_ids

    # Libraries keep a workspace for each stream. That of the captures must be made while capturing, so that
    # it lies in the graphs' pool: clearing workspaces (torch.compile does) leaves it alone.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()  # as a capture does
    try:
        with torch.inference_mode(), garbage_collected_before():
            yield capture
    finally:
        torch._C._cuda_clearCublasWorkspaces()  # no other work may use that of the graphs


@contextmanager
def garbage_collected_before() -> Iterator[None]:
    """A context without garbage collection, which is done before it. One thread at a time is inside.

    An engine that is collected, with its graphs, in the middle of another engine's capture would spoil that.
    """
    with uncollected():
        gc.collect()
        yield
