"""The kernel of a product and the residual it is added to, with a ring of boxes: see `ring_linear`."""

from torch import Tensor

from labkit.kernels.ring_linear import (
    barrier,
    boxes,
    check_ring,
    fill_ring,
    gdc_launch_dependents,
    product_layout,
    ring_product,
)
from labkit.kernels.tiles import Tile
from labkit.kernels.triton_runtime import early_launch, gl, gluon, triton


def launch_residual_ring(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    out: Tensor,
    statistics: Tensor,
    partials: Tensor | None,
    counters: Tensor | None,
    tile: Tile,
) -> None:
    """Launch the product for a tile with a ring; `linear_residual_triton` has checked all else. Raises
    ValueError where this device or these tensors allow none."""
    check_ring(x, weight)
    if len(x) == 0:
        return
    (M, K), N = x.shape, len(weight)
    _residual_ring_kernel[(triton.cdiv(M, tile.block_m), triton.cdiv(N, tile.block_n), tile.split_k)](
        boxes(x, tile.block_m, tile.block_k),
        boxes(weight, tile.block_n, tile.block_k),
        bias,
        residual,
        out,
        statistics,
        partials,
        counters,
        residual.stride(0),
        M,
        N,
        K,
        SPLIT_K=tile.split_k,
        STAGES=min(tile.num_stages, triton.cdiv(K, tile.block_k * tile.split_k)),
        **tile.blocks,
        **early_launch(x.device),
    )


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
