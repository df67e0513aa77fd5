"""How well a model foretells a text that it was not trained on, with keys and values kept in any dtype."""

from typing import Any

import torch
import torch.nn.functional as F

from labkit.engine.step.chunk import PackedAttention
from labkit.kernels import (
    PackedRows,
    kv_append_packed_plain,
    kv_append_packed_triton,
    packed_attention_plain,
    packed_attention_triton,
)
from labkit.kvcache import OneTableBlockManager
from labkit.model import LanguageModel

BLOCK_SIZE = 64
WINDOW = 256  # tokens that are read together: each is foretold from those before it


@torch.inference_mode()
def perplexity(model: LanguageModel, text: str, kept: torch.dtype | None = None) -> float:
    """The exponential of the mean loss, in nats, of a text's tokens in whole windows.

    Keys and values go through a paged cache of the dtype `kept`, None for the model's own, by the kernels of
    the engine's prompts; on a CPU by their plain twins.
    """
    device, config = model.device, model.config
    token_ids = torch.tensor(model.tokenizer.encode(text), device=device)
    windows = token_ids[: len(token_ids) // WINDOW * WINDOW].view(-1, WINDOW)
    num_blocks = WINDOW // BLOCK_SIZE
    manager = OneTableBlockManager(
        num_layers=config.num_layers,
        num_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=BLOCK_SIZE,
        max_blocks_per_layer=num_blocks,
        device=device,
        dtype=model.dtype,
        cache_dtype=kept,
    )
    on_gpu = device.type == "cuda"
    kernels = (
        (packed_attention_triton, kv_append_packed_triton)
        if on_gpu
        else (packed_attention_plain, kv_append_packed_plain)
    )
    attention = PackedAttention(manager, *kernels)
    int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
    table = torch.arange(num_blocks, **int32)[None]
    attention.begin(PackedRows(torch.tensor([0, WINDOW], **int32), torch.zeros(1, **int32), table))
    positions = torch.arange(WINDOW, device=device)[None]
    losses = []
    for each in windows:  # each writes over the blocks of the one before
        logits = model.network.lm_head(model.network(each[None], positions, attention)[0]).float()
        losses.append(F.cross_entropy(logits[:-1], each[1:], reduction="sum"))
    return torch.stack(losses).sum().div(len(windows) * (WINDOW - 1)).exp().item()
