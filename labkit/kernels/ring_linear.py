"""The fused products with a ring of boxes, which the TMA of a Hopper GPU brings.

The TMA (tensor memory accelerator) moves a box, a rectangle of a matrix, into shared memory on its own: a
program asks for it, and waits later for its bytes to have come. A program's ring has stages, each with a box
of weights and the box of x with the same columns. The weights of the first stages are asked for before the
wait for the kernel before this one, and a stage whose boxes have been multiplied gets the next ones. So as
many bytes can be on their way as fit in shared memory, however few registers are free.

In Gluon, the language below Triton: in Triton asking and waiting are one, a load. The plain twins are those
of `fused_linear` and `linear_residual`, whose wrappers launch the kernels here for a tile with a ring.
"""

# ruff: noqa: RUF005  # Gluon's lists grow by +

from typing import Any

import torch
from torch import Tensor

from labkit.kernels.tiles import Tile, can_be_boxed
from labkit.kernels.triton_runtime import (
    HAS_GLUON,
    INTERPRETED,
    TensorDescriptor,
    early_launch,
    gl,
    gluon,
    hopper,
    is_hopper,
    tl,
    triton,
)

# Names that have changed: in Triton 3.6 it is `thread_barrier`, up to 3.8 `async_copy_global_to_shared`.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
copy_box = getattr(hopper.tma, "async_load", None) or hopper.tma.async_copy_global_to_shared


def has_ring_kernels(device: torch.device) -> bool:
    """Whether kernels with a ring run on a device: no GPU after Hopper has their product of two boxes."""
    return HAS_GLUON and not INTERPRETED and is_hopper(device)


def check_ring(x: Tensor, weight: Tensor) -> None:
    """Raises ValueError unless a tile with a ring can be launched for x [M, K] and weight [N, K]."""
    if not has_ring_kernels(x.device):
        raise ValueError(f"tile.ring needs a Hopper GPU and Triton with Gluon, and x is on {x.device}")
    for name, matrix in (("x", x), ("weight", weight)):
        if not can_be_boxed(matrix):
            raise ValueError(
                f"{name} is {matrix.dtype} with strides {matrix.stride()}: for tile.ring its numbers must "
                "have 16 bits and its rows begin at multiples of 16 bytes"
            )


def boxes(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A matrix as the TMA sees it: cut into boxes [rows, columns], with zeros beyond its edges."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)


def launch_ring(
    kernel: Any, tile: Tile, x: Tensor, weight: Tensor, *arguments: Any, **constants: Any
) -> None:
    """Launch a product of x [M, K] and weight [N, K] for a tile with a ring; the caller has checked all else.
    Raises ValueError where this device or these tensors allow none.

    arguments: the kernel's behind its boxes. constants: its own, besides those of the tile.
    """
    check_ring(x, weight)
    (M, K), N = x.shape, len(weight)
    if M == 0:  # of which there are no boxes
        return
    kernel[(triton.cdiv(M, tile.block_m), triton.cdiv(N, tile.block_n), tile.split_k)](
        boxes(x, tile.block_m, tile.block_k),
        boxes(weight, tile.block_n, tile.block_k),
        *arguments,
        STAGES=min(tile.num_stages, triton.cdiv(K, tile.block_k * tile.split_k)),
        **constants,
        **tile.blocks,
        **early_launch(x.device),
    )


gdc_wait, gdc_launch_dependents = tl.extra.cuda.gdc_wait, tl.extra.cuda.gdc_launch_dependents


@gluon.constexpr_function
def product_layout(block_n: int, num_warps: int):
    """Where the numbers of a product [BLOCK_M, BLOCK_N] lie."""
    return gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, block_n, 16])


# --- the ring ------------------------------------------------------------------------------------------


@gluon.jit
def make_ring(x_boxes, weight_boxes, STAGES: gl.constexpr):
    """Stages for boxes of weights and of x, and a barrier for each, which counts the bytes that came."""
    weights = gl.allocate_shared_memory(
        weight_boxes.dtype, [STAGES] + weight_boxes.block_type.shape, weight_boxes.layout
    )
    x = gl.allocate_shared_memory(x_boxes.dtype, [STAGES] + x_boxes.block_type.shape, x_boxes.layout)
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        hopper.mbarrier.init(barriers.index(stage), count=1)
    return weights, x, barriers


@gluon.jit
def fill_ring(
    x_boxes, weight_boxes, m, n, first, STAGES: gl.constexpr, NUM_BYTES: gl.constexpr, EARLY: gl.constexpr
):
    """A ring whose first boxes, from column `first` on, are on their way: of weights before the kernel before
    this one has ended, and of x, which that kernel writes, after it."""
    BLOCK_K: gl.constexpr = weight_boxes.block_type.shape[1]
    ring = make_ring(x_boxes, weight_boxes, STAGES)
    for stage in gl.static_range(STAGES):
        ask_weights(weight_boxes, n, first + stage * BLOCK_K, stage, ring, NUM_BYTES, True)
    if EARLY:
        gdc_wait()
    for stage in gl.static_range(STAGES):
        ask_x(x_boxes, m, first + stage * BLOCK_K, stage, ring, True)
    barrier()  # else the compiler may move the last of these behind what the caller waits for
    return ring


@gluon.jit
def ask_weights(weight_boxes, n, k, stage, ring, num_bytes: gl.constexpr, is_asked):
    """Ask for the box of weights at (n, k). num_bytes: what the stage gets in all, with the box of x."""
    weights, _, barriers = ring
    hopper.mbarrier.expect(barriers.index(stage), num_bytes, pred=is_asked)
    copy_box(weight_boxes, [n, k], barriers.index(stage), weights.index(stage), pred=is_asked)


@gluon.jit
def ask_x(x_boxes, m, k, stage, ring, is_asked):
    """Ask for the box of x at (m, k)."""
    _, x, barriers = ring
    copy_box(x_boxes, [m, k], barriers.index(stage), x.index(stage), pred=is_asked)


@gluon.jit
def ring_product(
    x_boxes, weight_boxes, m, n, first, ring,
    NUM_BOXES: gl.constexpr, STAGES: gl.constexpr, NUM_BYTES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The product [BLOCK_M, BLOCK_N] over NUM_BOXES boxes from column `first` on, of which the first STAGES
    have been asked for."""
    BLOCK_M: gl.constexpr = x_boxes.block_type.shape[0]
    BLOCK_N: gl.constexpr = weight_boxes.block_type.shape[0]
    BLOCK_K: gl.constexpr = weight_boxes.block_type.shape[1]
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout=LAYOUT)
    for turn in range(NUM_BOXES // STAGES):
        for stage in gl.static_range(STAGES):
            acc = multiply_box(acc, stage, turn, ring)
            if NUM_BOXES > STAGES:  # only this stage's product may still run: the stage before is free
                box = turn * STAGES + stage - 1
                k = first + (box + STAGES) * BLOCK_K
                is_asked = (box >= 0) & (box + STAGES < NUM_BOXES)
                ask_weights(weight_boxes, n, k, (stage - 1) % STAGES, ring, NUM_BYTES, is_asked)
                ask_x(x_boxes, m, k, (stage - 1) % STAGES, ring, is_asked)
    for stage in gl.static_range(NUM_BOXES % STAGES):
        acc = multiply_box(acc, stage, NUM_BOXES // STAGES, ring)
    return hopper.warpgroup_mma_wait(0, deps=[acc])


@gluon.jit
def multiply_box(acc, stage: gl.constexpr, turn, ring):
    """acc, with the product of a stage's boxes on its way, and all products before it done."""
    weights, x, barriers = ring
    hopper.mbarrier.wait(barriers.index(stage), turn & 1)  # it counts from turn to turn in another phase
    acc = hopper.warpgroup_mma(x.index(stage), weights.index(stage).permute((1, 0)), acc, is_async=True)
    return hopper.warpgroup_mma_wait(1, deps=[acc])


# --- norm, linear, GELU or gate ------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["M"])
def _norm_ring_kernel(
    x_boxes, weight_boxes, statistics_ptr, column_sums_ptr, bias_ptr, out_ptr,
    eps, M, N,
    K: gl.constexpr, num_parts: gl.constexpr, width: gl.constexpr, GATED: gl.constexpr, GELU: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, BLOCK_P: gl.constexpr,
    STAGES: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = product_layout(BLOCK_N, num_warps)
    NUM_BOXES: gl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    NUM_BYTES: gl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * 2
    m = gl.program_id(0) * BLOCK_M
    n = gl.program_id(1) * BLOCK_N
    if EARLY:
        gdc_launch_dependents()
    column = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    if column_sums_ptr is not None:
        column_sums = gl.load(column_sums_ptr + column, mask=column < N, other=0.0)
    if bias_ptr is not None:
        bias = gl.load(bias_ptr + column, mask=column < N, other=0.0)
    ring = fill_ring(x_boxes, weight_boxes, m, n, 0, STAGES, NUM_BYTES, EARLY)
    mean, rstd = mean_and_rstd(
        statistics_ptr,
        m,
        M,
        eps,
        K,
        num_parts,
        width,
        column_sums_ptr is None,
        BLOCK_M,
        BLOCK_P,
        LAYOUT,
        num_warps,
    )
    acc = ring_product(x_boxes, weight_boxes, m, n, 0, ring, NUM_BOXES, STAGES, NUM_BYTES, LAYOUT)
    if column_sums_ptr is not None:
        acc = acc - mean[:, None] * column_sums[None, :]
    acc = rstd[:, None] * acc
    if bias_ptr is not None:
        acc = acc + bias[None, :]
    if GELU:  # as in the Triton kernel
        acc = acc / (1.0 + gl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))
    if GATED:
        gate, up = gl.split(gl.reshape(acc, [BLOCK_M, BLOCK_N // 2, 2]))
        ALONG_N: gl.constexpr = BLOCK_N // 16  # threads with 8 outputs each
        HALF: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ALONG_N, ALONG_N], [num_warps, 1], [1, 0])
        acc = gl.convert_layout(gate / (1.0 + gl.exp(-gate)) * up, HALF)
        row = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, HALF))
        column = n // 2 + gl.arange(0, BLOCK_N // 2, layout=gl.SliceLayout(0, HALF))
        num_columns = N // 2
    else:
        row = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
        num_columns = N
    in_tile = (row < M)[:, None] & (column < num_columns)[None, :]
    out = out_ptr + row[:, None] * num_columns + column[None, :]
    gl.store(out, acc.to(out_ptr.dtype.element_ty), mask=in_tile)


@gluon.jit
def mean_and_rstd(
    statistics_ptr, m, M, eps,
    K: gl.constexpr, num_parts: gl.constexpr, width: gl.constexpr, RMS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_P: gl.constexpr, LAYOUT: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Of BLOCK_M rows of x, from the statistics of their parts; an RMSNorm needs no mean."""
    ALONG_P: gl.constexpr = min(BLOCK_P, 32)
    PARTS: gl.constexpr = gl.BlockedLayout([1, 1], [32 // ALONG_P, ALONG_P], [num_warps, 1], [1, 0])
    row = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, PARTS))
    p = gl.arange(0, BLOCK_P, layout=gl.SliceLayout(0, PARTS))
    part = statistics_ptr + (row[:, None] * num_parts + p[None, :]) * 2
    in_part = (row < M)[:, None] & (p < num_parts)[None, :]
    means = gl.load(part, mask=in_part, other=0.0)
    squares = gl.load(part + 1, mask=in_part, other=0.0)
    counts = gl.where(p < num_parts, gl.minimum(K - p * width, width), 0).to(gl.float32)
    mean = gl.sum(means * counts[None, :], axis=1) / K
    apart = means  # from 0, in an RMSNorm
    if not RMS:
        apart = means - mean[:, None]
    variance = gl.sum(squares + counts[None, :] * apart * apart, axis=1) / K
    OF_ROW: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    return gl.convert_layout(mean, OF_ROW), gl.convert_layout(gl.rsqrt(variance + eps), OF_ROW)


# --- linear and residual -------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["M"])
def _residual_ring_kernel(
    x_boxes, weight_boxes, bias_ptr, residual_ptr, out_ptr, statistics_ptr, partials_ptr, counters_ptr,
    residual_stride_m,
    M, N,
    K: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = product_layout(BLOCK_N, num_warps)
    NUM_BOXES: gl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K)  # of a part
    NUM_BYTES: gl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * 2
    m = gl.program_id(0) * BLOCK_M
    n = gl.program_id(1) * BLOCK_N
    part = gl.program_id(2)
    first = part * (NUM_BOXES * BLOCK_K)
    if EARLY:
        gdc_launch_dependents()
    row = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    column = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    in_tile = (row < M)[:, None] & (column < N)[None, :]
    if bias_ptr is not None:
        bias = gl.load(bias_ptr + column, mask=column < N, other=0.0).to(gl.float32)
    ring = fill_ring(x_boxes, weight_boxes, m, n, first, STAGES, NUM_BYTES, EARLY)
    residual = residual_ptr + row[:, None] * residual_stride_m + column[None, :]
    rest = gl.load(residual, mask=in_tile, other=0.0).to(gl.float32)
    if bias_ptr is not None:
        rest += bias[None, :]
    acc = ring_product(x_boxes, weight_boxes, m, n, first, ring, NUM_BOXES, STAGES, NUM_BYTES, LAYOUT)
    if SPLIT_K == 1:
        store_with_statistics(acc + rest, row, column, M, N, out_ptr, statistics_ptr)
    else:  # as in the Triton kernel
        tile = gl.program_id(0) * gl.num_programs(1) + gl.program_id(1)
        within = (row - m)[:, None] * BLOCK_N + (column - n)[None, :]
        parts = partials_ptr + tile * (SPLIT_K * BLOCK_M * BLOCK_N) + within
        gl.store(parts + part * (BLOCK_M * BLOCK_N), acc, mask=in_tile, cache_modifier=".cg")
        barrier()
        arrived = gl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLIT_K - 1:
            total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout=LAYOUT)
            for i in gl.static_range(SPLIT_K):
                total += gl.load(
                    parts + i * (BLOCK_M * BLOCK_N), mask=in_tile, other=0.0, cache_modifier=".cg"
                )
            store_with_statistics(total + rest, row, column, M, N, out_ptr, statistics_ptr)
            gl.store(counters_ptr + tile, 0)


@gluon.jit
def store_with_statistics(out, row, column, M, N, out_ptr, statistics_ptr):
    """Store a tile, and of each row in it the mean and the squared distances of what is stored."""
    in_n = column < N
    rounded = out.to(out_ptr.dtype.element_ty)
    in_tile = (row < M)[:, None] & in_n[None, :]
    gl.store(out_ptr + row[:, None] * N + column[None, :], rounded, mask=in_tile)
    stored = gl.where(in_n[None, :], rounded.to(gl.float32), 0.0)
    mean = gl.sum(stored, axis=1) / gl.sum(in_n.to(gl.float32), axis=0)
    apart = gl.where(in_n[None, :], stored - mean[:, None], 0.0)
    place = statistics_ptr + (row * gl.num_programs(1) + gl.program_id(1)) * 2
    gl.store(place, mean, mask=row < M)
    gl.store(place + 1, gl.sum(apart * apart, axis=1), mask=row < M)
