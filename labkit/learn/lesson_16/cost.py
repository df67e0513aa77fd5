"""Lesson 16: bytes, blocks, how well a text is foretold, and time."""

from collections.abc import Mapping
from functools import partial
from statistics import median

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.benchmark import Timer

from labkit.bench import in_turn
from labkit.bench.limit import decode_limit, on_paper
from labkit.kernels import paged_attention_append_plain
from labkit.kernels.eight_bit import bytes_of_head
from labkit.kvcache import OneTableBlockManager
from labkit.learn.lesson_16.gate import Quantize
from labkit.learn.variants import Variants
from labkit.model import LanguageModel
from labkit.paths import ROOT
from labkit.results import load

BLOCK_SIZE = 64
WINDOW = 128  # tokens that are foretold together
KEPT = {"16 bits": torch.float16, "8 bits": torch.uint8}
NOTES = Variants("eight_bit_variants_h100")
# The type that is kept, tokens of a piece, and programs.
WAYS = {
    "16 bits": ("float16", 16, 2112),
    "8 bits, 16 tokens at a time": ("int8", 16, 2112),
    "8 bits, 32 tokens at a time": ("int8", 32, 1584),
}
HELD_OUT = ROOT / "data/tiny-gpt2/held_out.txt"


def step_bytes(kept: torch.dtype, batch_size: int = 64, context_len: int = 256, model: str = "gpt2") -> int:
    """Bytes that a decode step must move: weights in 16 bits, and keys and values as they are kept."""
    return decode_limit(on_paper(model), [context_len] * batch_size, 1.0, kept).num_bytes


def bytes_table() -> pd.DataFrame:
    """A row per load of GPT-2: megabytes of a step with keys and values in 16 bits and in 8."""
    rows = {}
    for batch_size, context_len in ((64, 256), (64, 900), (128, 64), (1, 256)):
        megabytes = [step_bytes(kept, batch_size, context_len) / 1e6 for kept in KEPT.values()]
        requests = "1 request" if batch_size == 1 else f"{batch_size} requests"
        rows[f"{requests} of {context_len} tokens"] = [
            *(f"{each:,.0f}" for each in megabytes),
            f"×{megabytes[0] / megabytes[1]:.2f}",
        ]
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=[*(f"{kept} (MB)" for kept in KEPT), "factor"]
    )


def blocks_table() -> pd.DataFrame:
    """A row per model: the blocks of 64 tokens that a GiB holds."""
    rows = {}
    for name in ("gpt2", "smollm2-135m", "qwen3-0.6b"):
        config = on_paper(name).config
        heads = 2 * config.num_layers * config.num_kv_heads
        sizes = [heads * bytes_of_head(BLOCK_SIZE, config.head_dim, kept) for kept in KEPT.values()]
        blocks = [2**30 // size for size in sizes]
        rows[name] = [f"{config.head_dim}", *(f"{n:,}" for n in blocks), f"×{blocks[1] / blocks[0]:.2f}"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=["head size", *KEPT, "factor"])


def attention_us() -> dict[tuple[int, int, str, int, int], float]:
    """Microseconds of a layer's attention on an H100, by requests, their tokens, and how: see WAYS."""
    samples = NOTES.part("pieces").samples
    return {(s.requests, s.tokens, s.kept, s.piece, s.at_once): s.us for s in samples if s.ahead == 1}


def pieces_table() -> pd.DataFrame:
    """A row per load of GPT-2: microseconds of a layer's attention on an H100, in 16 bits and in 8, where a
    program reads as many tokens at a time as in 16, and twice as many."""
    us, rows = attention_us(), {}
    for requests, tokens in ((32, 256), (64, 256), (64, 900), (128, 128)):
        took = [us[requests, tokens, *way] for way in WAYS.values()]
        rows[f"{requests} requests of {tokens} tokens"] = [f"{each:.1f}" for each in took]
    return pd.DataFrame.from_dict(rows, orient="index", columns=[f"{way} (µs)" for way in WAYS])


def expected_gain() -> str:
    """What rung 16 should gain on an H100 if attention alone took another time, beside what was measured."""
    record = load("comparison_eight_bit_h100")
    comparison = record.samples[0].comparison
    step = 1e6 * median(comparison.before_samples) / (record.max_new_tokens - 1)
    ways = WAYS["16 bits"], WAYS["8 bits, 32 tokens at a time"]
    before, after = (12 * attention_us()[64, 256, *way] for way in ways)
    return (
        f"a step of rung 14: {step:.0f} µs, attention in 12 layers: {before:.0f}, in 8 bits "
        f"{after:.0f}\nexpected: ×{step / (step - before + after):.2f}; measured: ×{comparison.speedup:.2f}"
    )


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
