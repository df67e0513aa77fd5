"""Lesson 16: bytes, how well a text is foretold, and time."""

from collections.abc import Mapping
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.benchmark import Timer

from labkit.bench import in_turn
from labkit.bench.limit import decode_limit, on_paper
from labkit.kernels import paged_attention_append_plain
from labkit.kvcache import OneTableBlockManager
from labkit.learn.lesson_16.gate import Quantize
from labkit.model import LanguageModel
from labkit.paths import ROOT

BLOCK_SIZE = 64
WINDOW = 128  # tokens that are foretold together
HELD_OUT = ROOT / "data/tiny-gpt2/held_out.txt"


def step_bytes(kept: torch.dtype, batch_size: int = 64, context_len: int = 256) -> int:
    """Bytes that a decode step of GPT-2 must move, with weights in 16 bits, and keys and values as `kept`."""
    return decode_limit(on_paper("gpt2"), [context_len] * batch_size, 1.0, kept).num_bytes


# --- how well a text is foretold ------------------------------------------------------------------------


@torch.inference_mode()
def perplexity_with(model: LanguageModel, quantize: Quantize, num_windows: int = 8) -> float:
    """The perplexity of the held-out text when all keys and values go through `quantize` and back."""

    def read(heads: Tensor) -> Tensor:
        numbers, scales = quantize(heads)
        return numbers * scales[..., None]

    def attention(layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, read(key), read(value), is_causal=True)

    token_ids = torch.tensor(model.tokenizer.encode(HELD_OUT.read_text(encoding="utf-8")))
    windows = token_ids[: num_windows * WINDOW].view(num_windows, WINDOW).to(model.device)
    positions = torch.arange(WINDOW, device=model.device).expand(num_windows, -1)
    network = model.network
    logits = network.lm_head(network(windows, positions, attention)).float()
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten()).exp().item()


def perplexity_table(model: LanguageModel, ways: Mapping[str, Quantize]) -> pd.DataFrame:
    """A row per way to quantize: perplexity of the held-out text, and how much more that is."""
    found = {name: perplexity_with(model, quantize) for name, quantize in ways.items()}
    first, *_ = found.values()
    rows = {name: [f"{each:.1f}", f"{100 * (each / first - 1):+.1f} %"] for name, each in found.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["perplexity", "more"])


# --- time -----------------------------------------------------------------------------------------------


def attention_seconds(batch_size: int = 4, context_len: int = 512, rounds: int = 5) -> dict[str, list[float]]:
    """Seconds of one layer's attention in PyTorch on this machine's CPU, by how keys and values are kept."""
    H, D, per_seq = 12, 64, context_len // BLOCK_SIZE + 1
    table = torch.arange(batch_size * per_seq, dtype=torch.int32).view(batch_size, per_seq)
    lens = torch.full((batch_size,), context_len, dtype=torch.int32)
    query, key, value = torch.randn(3, batch_size, H, D)

    def timer(kept: torch.dtype | None) -> Timer:
        manager = OneTableBlockManager(
            num_layers=1,
            num_heads=H,
            head_dim=D,
            block_size=BLOCK_SIZE,
            max_blocks_per_layer=batch_size * per_seq,
            cache_dtype=kept,
        )
        cached = manager.k_cache[0], manager.v_cache[0], table, lens, torch.arange(batch_size), context_len
        attend = partial(paged_attention_append_plain, query, key, value, *cached)
        return Timer("attend()", globals={"attend": attend})

    timers = {"32 bits": timer(None), "8 bits": timer(torch.uint8)}
    runs = in_turn([partial(each.timeit, 1) for each in timers.values()], rounds)
    return {name: [run.median for run in side] for name, side in zip(timers, runs, strict=True)}
