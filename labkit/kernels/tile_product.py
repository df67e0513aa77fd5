"""The inner part of the fused products: a tile of x @ w.T, its weights before the wait or in a loop.

`fused_linear` and `linear_residual` stand on it; neither norm nor residual is known here. Where a kernel
begins early (`early_launch`), it can ask for its weights while it waits, so that they are in the L2 cache.
"""

# ruff: noqa: RUF005  # Triton's tuples grow by +

from typing import Any

import torch
from torch import Tensor

from labkit.kernels.tiles import Tile, is_held
from labkit.kernels.triton_runtime import INTERPRETED, early_launch, tl, triton

ALIGNMENT = 16  # bytes: of where a prefetch begins, and of its size

# --- asked for ahead ------------------------------------------------------------------------------------


def can_prefetch(matrix: Tensor) -> bool:
    """Whether each row of a matrix, with any dimensions before it, begins and ends where a prefetch can."""
    sizes = matrix.shape[-1], matrix.storage_offset()
    return matrix.is_contiguous() and all(size * matrix.element_size() % ALIGNMENT == 0 for size in sizes)


@triton.jit
def prefetch_bytes(pointers, num_bytes):
    """Ask for num_bytes from each pointer [COUNT] on, once; for none where that is not above 0."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred is_asked;
        setp.gt.s32 is_asked, $2, 0;
        @is_asked cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [pointers.to(tl.int64), num_bytes * held_first(pointers.shape[0])],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def held_first(COUNT: tl.constexpr):
    """Which thread does what is to be done once for each of COUNT numbers: 1 there, 0 in all others [COUNT].

    An instruction runs in every thread. Where a program has more threads than numbers, several hold the same
    one, thread i number i % COUNT, and each would ask for its bytes.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .pred is_first;
        .reg .u32 thread, threads;
        mov.u32 thread, %tid.x;
        mov.u32 threads, %ntid.x;
        setp.le.u32 is_first, threads, $2;
        setp.eq.or.u32 is_first, thread, $1, is_first;
        selp.u32 $0, 1, 0, is_first;
        }""",
        "=r,r,r",
        [tl.arange(0, COUNT), tl.full([COUNT], COUNT, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def prefetch_rows(weight_ptr, n, first, COUNT: tl.constexpr, N, K: tl.constexpr):
    """Ask for `COUNT` numbers of the rows n, from number `first` on: once for all programs of these rows."""
    num_bytes = tl.minimum(COUNT, K - first) * (weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
    asks = (n < N) & (tl.program_id(0) == 0)
    prefetch_bytes(weight_ptr + n * K + first, tl.where(asks, num_bytes, 0))


# --- the product ----------------------------------------------------------------------------------------


@triton.jit
def held_weights(
    weight_rows, in_n, first, COUNT: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, HELD: tl.constexpr
):
    """HELD: columns `first` to first + COUNT of a program's rows of weights, a tensor [BLOCK_N, BLOCK_K] for
    each chunk; else nothing."""
    held = ()
    if HELD:
        for c in tl.static_range((COUNT + BLOCK_K - 1) // BLOCK_K):
            k = first + c * BLOCK_K + tl.arange(0, BLOCK_K)
            mask = in_n[:, None] & (k < K)[None, :]
            held = held + (tl.load(weight_rows + k[None, :], mask=mask, other=0.0),)
    return held


@triton.jit
def tile_product(
    x_rows, in_m, weight_rows, in_n, held, first,
    COUNT: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HELD: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The product [BLOCK_M, BLOCK_N] of rows of x and of weights, over the columns `first` to first + COUNT;
    such a part may end beyond K, or begin there."""
    acc = _zeros(BLOCK_M, BLOCK_N, BLOCK_K)
    if HELD:
        rows = ()
        for c in tl.static_range((COUNT + BLOCK_K - 1) // BLOCK_K):
            k = first + c * BLOCK_K + tl.arange(0, BLOCK_K)
            mask = in_m[:, None] & (k < K)[None, :]
            rows = rows + (tl.load(x_rows + k[None, :], mask=mask, other=0.0),)
        for c in tl.static_range((COUNT + BLOCK_K - 1) // BLOCK_K):
            acc = _add_product(acc, rows[c], held[c], UPCAST)
    else:
        for begin in tl.range(0, COUNT, BLOCK_K):
            k = first + begin + tl.arange(0, BLOCK_K)
            in_k = k < K
            w = tl.load(weight_rows + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)
            x = tl.load(x_rows + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
            acc = _add_product(acc, x, w, UPCAST)
    return _rows_first(acc, BLOCK_M)


# tl.dot works fastest with 64 rows or more on its left: there stand the weights if the batch has fewer. A
# single row is no matrix: its products are added up in registers, column by column, and summed at the end.


@triton.jit
def _zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    if BLOCK_M == 1:
        acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    elif BLOCK_M < 64:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    return acc


@triton.jit
def _add_product(acc, x, w, UPCAST: tl.constexpr):
    """acc + x @ w.T. UPCAST: in float32, where no product of two halves is rounded either."""
    if x.shape[0] == 1:
        acc += x.to(tl.float32) * w.to(tl.float32)
    else:
        if UPCAST:
            x, w = x.to(tl.float32), w.to(tl.float32)
        if x.shape[0] < 64:
            acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def _rows_first(acc, BLOCK_M: tl.constexpr):  # [BLOCK_M, BLOCK_N]
    if BLOCK_M == 1:
        acc = tl.sum(acc, axis=1)[None, :]
    elif BLOCK_M < 64:
        acc = tl.trans(acc)
    return acc


def must_upcast(dtype: torch.dtype) -> bool:
    """Whether a kernel must convert its inputs to float32 first: Triton's interpreter multiplies the bits of
    a bfloat16, not its value."""
    return INTERPRETED and dtype == torch.bfloat16


def product_options(tile: Tile, x: Tensor, weight: Tensor, prefetch: bool) -> dict[str, Any]:
    """What the tile says of a launch for x and weight, and how it begins. prefetch: whether it may ask for
    its weights while it waits."""
    return {
        "UPCAST": must_upcast(x.dtype),
        "HELD": is_held(tile),
        "PREFETCH": prefetch and not is_held(tile) and can_prefetch(weight),
        "num_stages": tile.num_stages,
        **tile.blocks,
        **early_launch(x.device),
    }
