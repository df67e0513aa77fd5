"""Lesson 09: how many programs a kernel has, which tokens each reads, and in which order sums are added."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from labkit.kernels import (
    SplitWorkspace,
    num_splits,
    paged_attention_append_plain,
    paged_attention_append_split_triton,
    triton_status,
)
from labkit.kernels.split_attention import TOKENS_AT_A_TIME
from labkit.kernels.tiles import tile_of
from labkit.model import GPT2Config
from labkit.model.random_configs import RANDOM_CONFIGS

MULTIPROCESSORS = 132  # of an H100


def product_table(batch_sizes: Sequence[int], config: GPT2Config = RANDOM_CONFIGS["gpt2"]) -> pd.DataFrame:
    """Programs of each matrix product of a layer, a column per batch size: how many tiles there are, and by
    how many programs each is shared."""
    E, inner = config.n_embd, config.inner_dim
    products = {
        "qkv (norm_linear)": (3 * E, E),
        "attention's projection (linear_residual)": (E, E),
        "fc (norm_linear)": (inner, E),
        "MLP's projection (linear_residual)": (E, inner),
    }
    rows = {}
    for name, (N, K) in products.items():
        row = {}
        for M in batch_sizes:
            tile = tile_of(M, N, K, can_split="residual" in name)
            tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
            row[f"B = {M}"] = f"{tiles}" if tile.split_k == 1 else f"{tiles} x {tile.split_k}"
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


class Sums(NamedTuple):
    """How many different float32 results the same parts gave, for two ways to add them."""

    added_on_arrival: int
    added_by_the_last: int


def sums_of_arrivals(num_parts: int, num_runs: int, seed: int = 0) -> Sums:
    """Add up the same parts many times, as programs that arrive in random order. Either each adds its part on
    arrival, as an atomic addition of floats would; or each stores its part, and the last program adds up all
    of them, from the first part on."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(-(2**20), 2**20, num_parts).astype(np.float32) / np.float32(7)
    at_once, by_last = set(), set()
    for _ in range(num_runs):
        arrivals = rng.permutation(num_parts)
        at_once.add(add_up(parts[arrivals]))
        stored = np.empty_like(parts)
        for count, part in enumerate(arrivals, start=1):
            stored[part] = parts[part]
            if count == num_parts:
                by_last.add(add_up(stored))
    return Sums(len(at_once), len(by_last))


def add_up(parts: Sequence[np.float32]) -> np.float32:
    """The float32 sum of the parts, added in this order."""
    total = np.float32(0)
    for part in parts:
        total = np.float32(total + part)
    return total


def pieces_of(
    context_len: int, splits: int, by_turns: bool, max_tokens: int = 1024
) -> list[tuple[int, int, int]]:
    """The pieces in which one request's tokens are read: (first token, number of tokens, program) each.

    by_turns: a program takes every splits-th piece, as the kernel does; else it has a contiguous share of the
    longest context that there can be.
    """
    pieces = []
    for first in range(0, context_len, TOKENS_AT_A_TIME):
        program = first // TOKENS_AT_A_TIME % splits if by_turns else first // -(-max_tokens // splits)
        pieces.append((first, min(TOKENS_AT_A_TIME, context_len - first), program))
    return pieces


def split_of_a_run(batch_size: int, context_lens: Sequence[int], num_heads: int = 12) -> dict[str, float]:
    """What splitting does in a run with sequences of these lengths, step by step: programs per request and
    head, how many of them have tokens to read, and in how many steps it is only one."""
    splits = num_splits(batch_size, num_heads, RANDOM_CONFIGS["gpt2"].n_positions)
    at_work = [len({program for *_, program in pieces_of(n, splits, by_turns=True)}) for n in context_lens]
    return {
        "programs a request and head": splits,
        "of them with tokens to read, on average": round(float(np.mean(at_work)), 1),
        "% of steps in which it is one": round(100 * float(np.mean(np.array(at_work) == 1))),
    }


def attention_case(
    lengths: Sequence[int], device: torch.device | str = "cpu", H: int = 2, D: int = 16, block_size: int = 16
) -> dict[str, Tensor]:
    """Arguments of one layer's attention, by name, for requests with so many tokens in the cache; random
    numbers, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    B = len(lengths)
    M = max(lengths) // block_size + 1
    table = torch.randperm(B * M, generator=generator).view(B, M)
    shapes = {
        **dict.fromkeys(("query", "key_new", "value_new"), (B, H, D)),
        **dict.fromkeys(("k_cache_layer", "v_cache_layer"), (B * M, H, block_size, D)),
    }
    case = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} | {
        "block_table": table.int(),
        "context_lens": torch.tensor(lengths, dtype=torch.int32),
        "slot_mapping": torch.arange(B),
    }
    return {name: tensor.to(device) for name, tensor in case.items()}


class Attended(NamedTuple):
    """What attention computes, [B, H, D], and the layer's caches after it."""

    out: Tensor
    k_cache: Tensor
    v_cache: Tensor


def attend(case: Mapping[str, Tensor], splits: int | None = None) -> Attended:
    """Run attention on a copy of the cache. splits: programs per request and head; None for the plain twin,
    which also stands for the kernel where Triton cannot run."""
    caches = {name: case[name].clone() for name in ("k_cache_layer", "v_cache_layer")}
    arguments = {**case, **caches}
    if splits is None or triton_status().mode == "off":
        out = paged_attention_append_plain(**arguments, max_context_len=int(case["context_lens"].max()))
    else:
        B, H, D = case["query"].shape
        workspace = SplitWorkspace(B, H, D, case["query"].device)
        out = paged_attention_append_split_triton(**arguments, workspace=workspace, splits=splits)
    return Attended(out, *caches.values())
