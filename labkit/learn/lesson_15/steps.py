"""Lesson 15: what the reader's kernels are built from, how they are launched, and the lane that has them.

B requests, H heads of queries, G heads of keys and values, D head size, N blocks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.lanes import Lane
from labkit.kernels import NormLinear, RowStatistics
from labkit.kernels.triton_runtime import INTERPRETED, require_triton, tl, triton
from labkit.learn.lesson_09.steps import TILE, grid_of, load_tile

LEAST_SIDE = 16  # of a matrix that a product on tensor cores takes
MOST_IN_A_TILE = 2**20  # numbers, says Triton
PIECE = 256 if INTERPRETED else 32  # tokens that a program reads at a time


# --- products -----------------------------------------------------------------------------------------------


@triton.jit
def product_tile(
    x_ptr, weight_ptr, m, n, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Rows m of x, as they are, times rows n of the weight: [BLOCK_M, BLOCK_N], the product of lesson 09."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, m, k, M, K).to(tl.float32)
        w = load_tile(weight_ptr, n, k, N, K).to(tl.float32)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def split_pairs(acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Columns 0, 2, 4, ... and columns 1, 3, 5, ... of a tile: [BLOCK_M, BLOCK_N / 2] each."""
    return tl.split(tl.reshape(acc, [BLOCK_M, BLOCK_N // 2, 2]))


def tile_for(N: int, K: int) -> dict[str, int]:
    """The tile of a product with a weight [N, K]. In the interpreter a wide program takes hardly longer than
    a narrow one, so one makes all columns of 16 rows there."""
    if not INTERPRETED:
        return TILE
    block_n, block_k = (triton.next_power_of_2(size) for size in (N, K))
    return {"BLOCK_M": 16, "BLOCK_N": block_n, "BLOCK_K": min(block_k, MOST_IN_A_TILE // block_n)}


def launch_linear(
    kernel: Any, x: Tensor, statistics: RowStatistics, layer: NormLinear, *_: Any, **__: Any
) -> Tensor:
    """A norm and the linear layer behind it by the reader's kernel, and a gate if the layer has one.

    Takes what a step's `norm_linear` takes, of layers without bias and GELU, and prefetches nothing. Raises
    TritonUnavailableError where no kernel runs.
    """
    require_triton()
    (M, K), N = x.shape, len(layer.weight)
    tile = tile_for(N, K)
    num_parts = statistics.parts.shape[1]
    # What no program writes shows, and a kernel without a gate has room where one with a gate belongs.
    num_out = N // 2 if layer.is_gated else N
    out = x.new_full((M * N,), torch.nan)[: M * num_out].view(M, num_out)
    kernel[grid_of(M, N, tile)](
        x,
        statistics.parts,
        layer.weight,
        out,
        layer.eps,
        M,
        N,
        K,
        num_parts,
        statistics.width,
        BLOCK_P=triton.next_power_of_2(num_parts),
        **tile,
    )
    return out


# --- attention ----------------------------------------------------------------------------------------------


@triton.jit
def load_cached(cache_ptr, table_ptr, g, first, length, G, D, block_size, BLOCK_T: tl.constexpr, d):
    """Keys or values of head g, of the BLOCK_T tokens from `first` on, 0 behind the last: [BLOCK_T, BLOCK_D]
    in float32."""
    token = first + tl.arange(0, BLOCK_T)
    is_live = token < length
    block = tl.load(table_ptr + token // block_size, mask=is_live, other=0).to(tl.int64)
    place = ((block * G + g) * block_size + token % block_size) * D
    mask = is_live[:, None] & (d < D)[None, :]
    return tl.load(cache_ptr + place[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_new(cache_ptr, table_ptr, g, context_len, G, D, block_size, d, numbers):
    """Store numbers [1, BLOCK_D], the new token's key or value in head g, behind the tokens in the cache. A
    row that pads a batch, with a length below 0, stores nothing."""
    place = tl.maximum(context_len, 0)
    block = tl.load(table_ptr + place // block_size).to(tl.int64)
    row = cache_ptr + ((block * G + g) * block_size + place % block_size) * D
    rounded = numbers.to(cache_ptr.dtype.element_ty)
    tl.store(row + d[None, :], rounded, mask=(d < D)[None, :] & (context_len >= 0))


@triton.jit
def attend_one(
    query,
    key,
    value,
    g,
    length,
    G,
    D,
    block_size,
    table_ptr,
    k_cache_ptr,
    v_cache_ptr,
    scale,
    BLOCK_T: tl.constexpr,
    d,
):
    """Attention of one query to the cached tokens and its own, all [1, BLOCK_D]: the loop of lesson 07, with
    a softmax piece by piece."""
    largest = tl.sum(query * key, axis=1) * scale  # [1]
    total = tl.zeros_like(largest) + 1
    acc = value
    for first in range(0, length, BLOCK_T):
        keys = load_cached(k_cache_ptr, table_ptr, g, first, length, G, D, block_size, BLOCK_T, d)
        values = load_cached(v_cache_ptr, table_ptr, g, first, length, G, D, block_size, BLOCK_T, d)
        scores = tl.sum(query * keys, axis=1) * scale
        scores = tl.where(first + tl.arange(0, BLOCK_T) < length, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        correction = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        total = total * correction + tl.sum(weights, axis=0)
        acc = acc * correction[:, None] + tl.sum(weights[:, None] * values, axis=0)[None, :]
        largest = new_largest
    return acc / total[:, None]


@dataclass(frozen=True)
class MyAttention:
    """Attention, and the store of the new token, by the reader's kernel: a `PagedAttentionAppend`. It has a
    program per request and head of keys (per_group), or per request and query head."""

    kernel: Any
    per_group: bool

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *cached: Any) -> Tensor:
        """Takes and returns what a `PagedAttentionAppend` does; the transform has angles and no norms. Raises
        ValueError for another one, and TritonUnavailableError where no kernel runs."""
        require_triton()
        k_cache, v_cache, block_table, *rows, _, transform = cached
        if getattr(transform, "cos", None) is None or transform.query_norm is not None:
            raise ValueError("lesson 15's attention rotates heads, and norms none")
        (B, H, D), G = query.shape, key.shape[1]
        blocks = {"BLOCK_R": max(LEAST_SIDE, triton.next_power_of_2(H // G))} if self.per_group else {}
        # What no program writes shows, and rows that a mask forgets have room behind the last head.
        room = query.new_full((B * H + blocks.get("BLOCK_R", 0), D), torch.nan)
        out = room[: B * H].view(B, H, D)
        self.kernel[(B, G if self.per_group else H)](
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            k_cache,
            v_cache,
            block_table,
            *rows,
            transform.cos,
            transform.sin,
            out,
            H,
            D,
            k_cache.shape[2],
            block_table.stride(0),
            D**-0.5,
            GROUP=H // G,
            BLOCK_T=PIECE,
            BLOCK_D=max(LEAST_SIDE, triton.next_power_of_2(D)),
            **blocks,
        )
        return out


# --- in an engine's step ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadersNormLinear:
    """A step's `norm_linear` with the reader's kernels in the places of the package's.

    plain, gated: for layers without a gate, and with one; None leaves the package's.
    """

    package: Any
    plain: Any
    gated: Any

    def __call__(
        self, x: Tensor, statistics: RowStatistics, layer: NormLinear, *gelu: Any, **how: Any
    ) -> Tensor:
        kernel = self.gated if layer.is_gated else self.plain
        run = self.package if kernel is None else partial(launch_linear, kernel)
        return run(x, statistics, layer, *gelu, **how)


def with_mine(
    lane: Lane, rms_linear: Any = None, gated_linear: Any = None, group: Any = None, head: Any = None
) -> Lane:
    """A lane of a step, with kernels of the reader's in the places of the package's.

    rms_linear, gated_linear: products behind a norm. group, head: attention, with a program per head of keys
    or per head of queries; one of them at most. None leaves the package's.
    """
    attention, kernels = lane
    kernel = head if group is None else group
    if kernel is not None:
        mine = MyAttention(kernel, per_group=group is not None)
        attention = AttendAndWrite(attention.kv_manager, mine)
    linear = ReadersNormLinear(kernels.norm_linear, rms_linear, gated_linear)
    return Lane(attention, kernels._replace(norm_linear=linear))
