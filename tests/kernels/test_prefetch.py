"""Prefetching: where it is possible, and that it changes no bit of what a kernel computes."""

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels import fold_layer_norm, linear_residual_triton, norm_linear_triton
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.tile_product import can_prefetch, held_first
from labkit.kernels.triton_runtime import tl, triton


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (torch.zeros(3, 8, dtype=torch.float16), True),
        (torch.zeros(3, 4, dtype=torch.float32), True),
        (torch.zeros(3, 7, dtype=torch.float16), False),  # rows of 14 bytes
        (torch.zeros(3, 6, dtype=torch.float32), False),  # of 24
        (torch.zeros(2, 3, 4, 8, dtype=torch.float16)[1], True),
        (torch.zeros(33, dtype=torch.float32)[1:].view(4, 8), False),  # begins at byte 4
        (torch.zeros(36, dtype=torch.float32)[4:].view(4, 8), True),
        (torch.zeros(8, 16, dtype=torch.float16)[:, :8], False),  # not one behind the other
    ],
)
def test_rows_can_be_prefetched_that_begin_and_end_at_a_multiple_of_16_bytes(matrix, expected):
    assert can_prefetch(matrix) is expected


def products(M, K, N, prefetch):
    """Both fused products of the same random numbers."""
    torch.manual_seed(M + K + N)
    x, residual = torch.randn(M, K), torch.randn(M, N)
    weight, bias = torch.randn(N, K) * K**-0.5, torch.randn(N)
    x, residual, weight, bias = (each.cuda().half() for each in (x, residual, weight, bias))
    norm = torch.rand(K).cuda().half(), torch.randn(K).cuda().half()
    layer = fold_layer_norm(*norm, 1e-5, weight, bias)
    out, statistics = linear_residual_triton(x, weight, bias, residual, prefetch=prefetch)
    return norm_linear_triton(x, row_statistics(x, K), layer, prefetch=prefetch), out, statistics.parts


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(
    ("K", "N"), [(768, 2304), (3072, 768), (768, 768), (776, 100), (48, 80), (40, 33), (37, 50)]
)
@pytest.mark.parametrize("M", [1, 32, 64])
def test_on_a_gpu_products_have_the_same_bits(M, K, N):
    made, expected = (products(M, K, N, prefetch) for prefetch in (True, False))
    assert all(map(torch.equal, made, expected))


@triton.jit
def _count_what_is_done_once(counts_ptr, COUNT: tl.constexpr):
    """Add 1 to each count, as often as a prefetch is asked for."""
    counts = counts_ptr + tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p red.global.add.u32 [$1], 1; mov.u32 $0, 0; }",
        "=r,l,r",
        [counts.to(tl.int64), held_first(COUNT)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("count", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_of_the_threads_that_hold_a_number_one_asks(count, num_warps):
    """With 16 numbers and 4 warps each is held by 8 threads, which would ask 8 times."""
    counts = torch.zeros(3 * count, dtype=torch.int32, device="cuda")
    _count_what_is_done_once[(3,)](counts, COUNT=count, num_warps=num_warps)
    assert counts.tolist() == [1] * (3 * count)
