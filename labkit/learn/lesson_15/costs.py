"""Lesson 15: bytes, counts and times of a modern model's steps, on paper and on this machine; and a talk."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch.utils.benchmark import Timer

from labkit.bench import cost_card, decode_limit, in_turn, on_paper
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.parts import Part
from labkit.errors import CheckpointError
from labkit.kernels.triton_runtime import INTERPRETED
from labkit.ladder import LADDER
from labkit.learn.lesson_15.gate import heads_of
from labkit.learn.lesson_15.steps import MyAttention
from labkit.learn.variants import Variants
from labkit.learn.verdict import wrapped
from labkit.model import LanguageModel, load_model
from labkit.model.small import SMALL_LLAMA, small_model
from labkit.results import counts_table
from labkit.watch import record_accesses, steady_prompts
from labkit.watch.accesses import READ, KernelRun
from labkit.watch.launches import device_step_of

ON_PAPER = Variants("modern_model_h100")
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64  # of SmolLM2's layers
FEW_TOKENS = 4  # of an answer, where an interpreter takes seconds for each


# --- on paper -----------------------------------------------------------------------------------------------


def kv_bytes_per_token(name: str) -> int:
    """Bytes of keys and values that a token has in all layers, in 16 bits."""
    return 2 * on_paper(name).config.kv_values_per_token


def limit_table(names: Sequence[str], sizes: Sequence[int], context_len: int) -> pd.DataFrame:
    """What a decode step must move, and how soon it can end on an H100: a row per model and batch size."""
    rows = {}
    for name in names:
        for B in sizes:
            limit = decode_limit(on_paper(name), [context_len] * B, ON_PAPER.part("models").bandwidth.copy)
            rows[name, B] = {
                "MB of weights": round(limit.weight_bytes / 1e6),
                "MB of keys and values": round(limit.kv_bytes / 1e6),
                "limit, µs a step": round(1e6 * limit.seconds),
                "limit, tokens/s": round(limit.tokens_per_second, -2),
            }
    return pd.DataFrame(rows).T.astype(int).rename_axis(["model", "B"])


# --- counted ------------------------------------------------------------------------------------------------


def attention_run(kernel: Any, per_group: bool, shape: tuple[int, int, int], num_tokens: int) -> KernelRun:
    """A launch of an attention kernel for a request with so many tokens in the cache, and what its programs
    accessed. shape: heads of queries, heads of keys, head size."""
    with record_accesses() as runs:
        heads_of(*shape, num_tokens).attended(MyAttention(kernel, per_group))
    return runs[0]


def keys_read(kernel: Any, per_group: bool) -> int:
    """How many values of cached keys a kernel reads in a layer of SmolLM2, with 20 tokens in the cache."""
    run = attention_run(kernel, per_group, (HEADS, KV_HEADS, HEAD_DIM), 20)
    return sum(kind == READ for _, kind, _ in run.touched("k_cache_ptr"))


def counts_of_depths(rungs: Sequence[str], depths: Sequence[int]) -> pd.DataFrame:
    """What the host does in a steady step of 8 requests of models with so many layers: a row per rung."""
    cards = {}
    for rung in rungs:
        for depth in depths:
            model = small_model(config=replace(SMALL_LLAMA, num_hidden_layers=depth))
            cache = CacheConfig(prefix_cache=False)
            engine = InferenceEngine(model, LADDER[rung].options, device="cpu", cache=cache)
            cards[rung, f"{depth} layers"] = cost_card(engine, steady_prompts(8, (20,)))
    counts = {"manager_calls": "calls into the manager", "aten_ops": "operators"}
    return counts_table(cards, counts).T.unstack().rename_axis("rung")


# --- on this machine ----------------------------------------------------------------------------------------


def time_attention(num_tokens: int, device: torch.device, rounds: int = 9) -> Mapping[str, float]:
    """Microseconds of one layer's attention of 8 requests with SmolLM2's 9 query heads, in plain PyTorch on
    this machine, in turn: with 9 heads of keys and values, and with 3."""
    B = 8

    def timer(num_kv_heads: int) -> Timer:
        shape = (B * num_kv_heads, num_tokens, HEAD_DIM)
        keys, values = torch.randn(2, *shape, device=device)
        query = torch.randn(B * num_kv_heads, HEADS // num_kv_heads, HEAD_DIM, device=device)
        attend = "(query @ keys.transpose(1, 2) * scale).softmax(-1) @ values"
        scale = HEAD_DIM**-0.5
        return Timer(attend, globals={"query": query, "keys": keys, "values": values, "scale": scale})

    timers = {f"{G} heads of keys": timer(G) for G in (HEADS, KV_HEADS)}
    runs = in_turn([partial(each.timeit, 1) for each in timers.values()], rounds)
    return {name: 1e6 * median(run.median for run in side) for name, side in zip(timers, runs, strict=True)}


# --- a conversation -----------------------------------------------------------------------------------------


def chat_model() -> LanguageModel | None:
    """SmolLM2-135M-Instruct; None, and how to get it is printed, where it is not installed."""
    try:
        return load_model("smollm2-135m")
    except CheckpointError as error:
        print(wrapped(f"No chat model here: {error}"))
        return None


def talk(model: LanguageModel, text: str, step: Part, device: torch.device, num_tokens: int = 48) -> None:
    """Print the model's greedy answer to a text by an engine of rung 14 with this step, and what the
    package's engine says. Where the step's kernels are interpreted, the former makes FEW_TOKENS alone."""
    prompt = model.chat_prompt([{"role": "user", "content": text}])
    settings: dict[str, Any] = {
        "device": device,
        "dtype": torch.float32,
        "cache": CacheConfig(max_positions=512),
    }
    options = LADDER["14"].options
    mine = InferenceEngine(model, options, parts={"latency": step}, **settings)
    is_slow = INTERPRETED and isinstance(device_step_of(mine).attention.attention, MyAttention)
    print(f"You:     {text}\nYours:   ", end="", flush=True)
    said = ""
    for chunk in mine.stream(prompt, SamplingParams(FEW_TOKENS if is_slow else num_tokens)):
        said += chunk.text
        print(chunk.text, end="", flush=True)
    package = InferenceEngine(model, options, **settings)
    (done,) = package.generate([prompt], SamplingParams(num_tokens))
    print(f"\nPackage: {done.text}\nThe same as far as yours goes: {done.text.startswith(said)}")
