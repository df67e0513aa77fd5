"""kv-append: times one layer's K/V write alone, in each of its forms, for 1 to 2048 requests.

Index tensors exist already, so this is the kernel and its launch alone. GB/s count new keys and values read
once and written once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from labkit import kernels
from labkit.bench.commands.arguments import COUNT, DeviceFlags, batch_sizes_flag
from labkit.bench.commands.flags import ByDevice, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.limit import launcher, measure_bandwidth, synchronize, timed
from labkit.engine.device import pick_device
from labkit.kvcache.kv_write import runs_triton
from labkit.results.kernel_times import AppendTime

H, D, BLOCK_SIZE, LAYERS = 12, 64, 64, 12  # GPT-2's, written in turn
BATCH_SIZES = tuple(2**i for i in range(12))  # 1 to 2048
ROUNDS = 10


@dataclass
class Settings(DeviceFlags):
    batch_sizes: tuple[int, ...] = batch_sizes_flag(ByDevice(BATCH_SIZES, (1, 8, 64)), "are written together")
    repeats: int = flag(15, "each form and size is measured this many times", COUNT)


def run(args: Settings) -> None:
    device = pick_device(args.device)
    bandwidth = measure_bandwidth(device)
    times: list[AppendTime] = []
    with args.until_interrupted(times):
        for batch_size in tqdm(args.batch_sizes, desc="B"):
            times += time_appends(batch_size, device, args.repeats)
    rows: dict[int, dict[str, float]] = {}  # by batch size: the time of each path, and the best rate
    for made in times:
        rows.setdefault(made.batch_size, {})[f"{made.path} (µs)"] = round(made.device_us, 2)
    for batch_size, row in rows.items():
        best = max(made.rate for made in times if made.batch_size == batch_size)
        row["best, GB/s"] = round(best / 1e9, 1)
        row["best, % of copy"] = round(100 * best / bandwidth.copy, 1)
    print(pd.DataFrame.from_dict(rows, orient="index").rename_axis("B").to_string())
    print(f"Memory: {bandwidth}")
    record_if_asked(args, "kv_append", device, times, bandwidth, model="none, a layer of GPT-2's")


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
def time_appends(batch_size: int, device: torch.device, repeats: int) -> list[AppendTime]:
    """Time every form of the write at one batch size, in turn.

    There are `repeats` measurements of each, over ROUNDS times all layers.
    """
    paths, num_bytes = append_calls(batch_size, device)
    launches = {path: launcher(calls, device, ROUNDS) for path, calls in paths.items()}
    per_call = ROUNDS * LAYERS
    on_device: dict[str, list[float]] = {path: [] for path in paths}
    on_host: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(repeats):
        for path, calls in paths.items():
            on_device[path].append(timed(launches[path], device) / per_call)
            synchronize(device)
            started = time.perf_counter()
            for call in calls:
                call()  # on a GPU it is launched, and not waited for
            on_host[path].append((time.perf_counter() - started) / LAYERS)
    return [
        AppendTime(path, batch_size, tuple(on_device[path]), tuple(on_host[path]), num_bytes)
        for path in paths
    ]
