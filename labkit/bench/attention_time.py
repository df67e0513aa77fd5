"""How long one layer's attention takes by itself, with one program per request and head and with several."""

from collections.abc import Callable
from functools import partial

import torch

from labkit.bench.append_time import BLOCK_SIZE, LAYERS, D, H, launcher, timed
from labkit.engine.step.attention import SplitAttention
from labkit.kernels import (
    num_splits,
    paged_attention_append_plain,
    paged_attention_append_triton,
    triton_status,
)
from labkit.kvcache import OneTableBlockManager
from labkit.results.attention_time import ONE_PROGRAM, SPLIT, AttentionTime

MAX_TOKENS = 1024  # of a sequence, GPT-2's


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
    batch_size: int, context_len: int, device: torch.device, repeats: int = 15, rounds: int = 5
) -> list[AttentionTime]:
    """Time each kernel of attention and K/V write in turn.

    There are `repeats` measurements of each, over `rounds` times all layers.
    """
    made = attention_calls(batch_size, context_len, device)
    launches = {kernel: launcher(calls, device, rounds) for kernel, (_, calls) in made.items()}
    seconds: dict[str, list[float]] = {kernel: [] for kernel in made}
    for _ in range(repeats):
        for kernel, launch in launches.items():
            seconds[kernel].append(timed(launch, device) / (rounds * LAYERS))
    itemsize = 2 if device.type == "cuda" else 4
    num_bytes = 2 * batch_size * context_len * H * D * itemsize
    return [
        AttentionTime(kernel, batch_size, context_len, splits, tuple(seconds[kernel]), num_bytes)
        for kernel, (splits, _) in made.items()
    ]
