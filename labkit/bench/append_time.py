"""How long the K/V write of one layer takes by itself, in each of its forms."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from labkit import kernels
from labkit.bench.limit import synchronize
from labkit.kvcache.kv_write import runs_triton
from labkit.results.append_time import AppendTime

H, D, BLOCK_SIZE, LAYERS = 12, 64, 64, 12  # GPT-2's, written in turn
BATCH_SIZES = tuple(2**i for i in range(12))  # 1 to 2048


def append_calls(batch_size: int, device: torch.device) -> tuple[dict[str, list[Callable[[], None]]], int]:
    """By path, one call per layer, all writing the same tokens; and the bytes that one call moves."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    k_cache, v_cache = (
        torch.zeros(LAYERS, batch_size, H, BLOCK_SIZE, D, device=device, dtype=dtype) for _ in range(2)
    )
    # [B, 3, H, D]: keys and values are views of one tensor, as the model makes them
    qkv = torch.randn(LAYERS, batch_size, 3, H, D, device=device).to(dtype)
    batch_idx = torch.arange(batch_size, dtype=torch.int32, device=device)
    block_idx = torch.randperm(batch_size, device=device).int()
    pos = torch.full((batch_size,), 5, dtype=torch.int32, device=device)

    def calls(write: Callable, *indices: Tensor | int) -> list[Callable[[], None]]:
        return [
            partial(write, k_cache[i], v_cache[i], qkv[i, :, 1], qkv[i, :, 2], *indices)
            for i in range(LAYERS)
        ]

    on_triton = runs_triton(device)
    generic = kernels.kv_append_triton if on_triton else kernels.kv_append_plain
    full_batch = kernels.kv_append_triton_full_batch if on_triton else kernels.kv_append_full_batch_plain
    identity_pos = (
        kernels.kv_append_triton_identity_pos if on_triton else kernels.kv_append_identity_pos_plain
    )
    paths = {
        "indexed": calls(kernels.kv_append_plain, batch_idx, block_idx, pos),
        "generic": calls(generic, batch_idx, block_idx, pos),
        "full_batch": calls(full_batch, block_idx, 5),
        "identity_pos": calls(identity_pos, block_idx, pos),
    }
    return paths, 2 * 2 * batch_size * H * D * qkv.element_size()


@torch.inference_mode()
def time_appends(
    batch_size: int, device: torch.device, repeats: int = 15, rounds: int = 10
) -> list[AppendTime]:
    """Time every form of the write at one batch size, in turn.

    There are `repeats` measurements of each, over `rounds` times all layers.
    """
    paths, num_bytes = append_calls(batch_size, device)
    launches = {path: launcher(calls, device, rounds) for path, calls in paths.items()}
    per_call = rounds * LAYERS
    on_device: dict[str, list[float]] = {path: [] for path in paths}
    on_host: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(repeats):
        for path, calls in paths.items():
            on_device[path].append(timed(launches[path], device) / per_call)
            on_host[path].append(time_launches(calls, device) / LAYERS)
    return [
        AppendTime(path, batch_size, tuple(on_device[path]), tuple(on_host[path]), num_bytes)
        for path in paths
    ]


def launcher(
    calls: Sequence[Callable[[], object]], device: torch.device, rounds: int
) -> Callable[[], object]:
    """A function that makes all calls `rounds` times; on a GPU it replays them from a CUDA graph."""

    def run_all() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    run_all()
    if device.type != "cuda":
        return run_all
    synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_all()
    return graph.replay


def timed(launch: Callable[[], object], device: torch.device) -> float:
    """Seconds that a launch takes; on a GPU between two events on its stream."""
    if device.type != "cuda":
        started = time.perf_counter()
        launch()
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def time_launches(calls: list[Callable[[], None]], device: torch.device) -> float:
    """Seconds that the host takes to make all calls, without waiting for what they launch on a GPU."""
    synchronize(device)
    started = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - started
