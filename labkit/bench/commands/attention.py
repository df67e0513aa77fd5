"""attention: times one layer's attention and write alone, with one program per request and head or several.

GB/s count the keys and values in the cache, read once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import COUNT, DeviceFlags, batch_sizes_flag, list_of
from labkit.bench.commands.flags import ByDevice, Kind, flag
from labkit.bench.commands.kv_append import BLOCK_SIZE, LAYERS, D, H
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.limit import launcher, measure_bandwidth, timed
from labkit.engine.device import pick_device
from labkit.engine.step.attention import SplitAttention
from labkit.flag_types import whole_number
from labkit.kernels import (
    num_splits,
    paged_attention_append_plain,
    paged_attention_append_triton,
    triton_status,
)
from labkit.kvcache import OneTableBlockManager
from labkit.results.kernel_times import ONE_PROGRAM, SPLIT, AttentionTime

MAX_TOKENS = 1024  # of a sequence, GPT-2's
ROUNDS = 5


@dataclass
class Settings(DeviceFlags):
    batch_sizes: tuple[int, ...] = batch_sizes_flag(
        ByDevice((1, 8, 64, 128), (1, 8)), "are attended to together"
    )
    contexts: tuple[int, ...] = flag(
        (64, 256, 900),
        "each request has this many tokens in the cache",
        Kind(list_of(whole_number(1, MAX_TOKENS - 1)), "N,N,..."),
    )
    repeats: int = flag(15, "each size and kernel is measured this many times", COUNT)


def run(args: Settings) -> None:
    device = pick_device(args.device)
    bandwidth = measure_bandwidth(device)
    sizes = [(b, t) for b in args.batch_sizes for t in args.contexts]
    times: list[AttentionTime] = []
    with args.until_interrupted(times):
        for b, t in tqdm(sizes, desc="sizes"):
            times += time_attention(b, t, device, args.repeats)
    print(attention_table(times, bandwidth.copy).to_string())
    print(f"Memory: {bandwidth}")
    record_if_asked(args, "attention", device, times, bandwidth, model="none, a layer of GPT-2's")


def attention_table(times: list[AttentionTime], bandwidth: float) -> pd.DataFrame:
    """A row per size and kernel: microseconds, and what part of copy bandwidth is reached."""
    rows = [
        (t.batch_size, t.context_len, t.kernel, t.splits, round(t.us, 2), round(100 * t.rate / bandwidth, 1))
        for t in times
    ]
    columns = ["B", "tokens", "kernel", "splits", "µs", "% of copy"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:3])


def attention_calls(
    batch_size: int, context_len: int, device: torch.device
) -> dict[str, tuple[int, list[Callable[[], object]]]]:
    """By kernel: programs per request and head, and a call per layer; without a GPU only the plain kernel."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    blocks_per_seq = MAX_TOKENS // BLOCK_SIZE
    manager = OneTableBlockManager(
        num_layers=LAYERS,
        num_heads=H,
        head_dim=D,
        block_size=BLOCK_SIZE,
        max_blocks_per_layer=batch_size * -(-(context_len + 1) // BLOCK_SIZE),
        max_blocks_per_seq=blocks_per_seq,
        device=device,
        dtype=dtype,
    )
    manager.k_cache.normal_()
    manager.v_cache.normal_()
    qkv = torch.randn(LAYERS, batch_size, 3, H, D, device=device).to(dtype)
    blocks = torch.randperm(manager.max_blocks_per_layer, device=device).int().view(batch_size, -1)
    table = torch.zeros(batch_size, blocks_per_seq, dtype=torch.int32, device=device)
    table[:, : blocks.shape[1]] = blocks
    context_lens = torch.full((batch_size,), context_len, dtype=torch.int32, device=device)
    slots = torch.arange(batch_size, device=device)

    def calls(attend: Callable) -> list[Callable[[], object]]:
        return [
            partial(
                attend,
                *qkv[i].unbind(1),
                manager.k_cache[i],
                manager.v_cache[i],
                table,
                context_lens,
                slots,
                context_len,
            )
            for i in range(LAYERS)
        ]

    if device.type != "cuda" or triton_status().mode != "native":
        return {ONE_PROGRAM: (1, calls(paged_attention_append_plain))}
    return {
        ONE_PROGRAM: (1, calls(paged_attention_append_triton)),
        SPLIT: (num_splits(batch_size, H, MAX_TOKENS), calls(SplitAttention(manager, batch_size, H))),
    }


@torch.inference_mode()
def time_attention(
    batch_size: int, context_len: int, device: torch.device, repeats: int
) -> list[AttentionTime]:
    """Time each kernel of attention and K/V write in turn.

    There are `repeats` measurements of each, over ROUNDS times all layers.
    """
    made = attention_calls(batch_size, context_len, device)
    launches = {kernel: launcher(calls, device, ROUNDS) for kernel, (_, calls) in made.items()}
    seconds: dict[str, list[float]] = {kernel: [] for kernel in made}
    for _ in range(repeats):
        for kernel, launch in launches.items():
            seconds[kernel].append(timed(launch, device) / (ROUNDS * LAYERS))
    itemsize = 2 if device.type == "cuda" else 4
    num_bytes = 2 * batch_size * context_len * H * D * itemsize
    return [
        AttentionTime(kernel, batch_size, context_len, splits, tuple(seconds[kernel]), num_bytes)
        for kernel, (splits, _) in made.items()
    ]
