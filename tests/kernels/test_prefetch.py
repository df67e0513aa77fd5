"""Prefetching: where it is possible, and that it changes no bit of what a kernel computes."""

from functools import partial

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels import (
    SplitWorkspace,
    fold_layer_norm,
    linear_residual_triton,
    norm_linear_triton,
    paged_attention_append_split_triton,
)
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.prefetch import can_prefetch


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


def products(M, K, N, device, dtype, prefetch):
    """Both fused products of the same random numbers."""
    torch.manual_seed(M + K + N)
    x, residual = torch.randn(M, K), torch.randn(M, N)
    weight, bias = torch.randn(N, K) * K**-0.5, torch.randn(N)
    x, residual, weight, bias = (each.to(device, dtype) for each in (x, residual, weight, bias))
    norm = torch.rand(K, device=device).to(dtype), torch.randn(K, device=device).to(dtype)
    layer = fold_layer_norm(*norm, 1e-5, weight, bias)
    out, statistics = linear_residual_triton(x, weight, bias, residual, prefetch=prefetch)
    return norm_linear_triton(x, row_statistics(x, K), layer, prefetch=prefetch), out, statistics.parts


@needs_triton
@pytest.mark.parametrize(("K", "N"), [(48, 80), (40, 33), (37, 50)])
def test_products_have_the_same_bits(K, N):
    """On a GPU that has the instruction, with it; elsewhere without."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for made, expected in zip(
        *(products(5, K, N, device, torch.float16, p) for p in (True, False)), strict=True
    ):
        assert torch.equal(made, expected)


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(("K", "N"), [(768, 2304), (3072, 768), (768, 768), (776, 100)])
@pytest.mark.parametrize("M", [1, 32, 64])
def test_on_a_gpu_products_of_a_model_have_the_same_bits(M, K, N):
    made, expected = (products(M, K, N, "cuda", torch.float16, p) for p in (True, False))
    assert all(map(torch.equal, made, expected))


@needs_triton
@pytest.mark.parametrize(("D", "splits"), [(64, 1), (64, 3), (20, 2)])
def test_attention_has_the_same_bits(D, splits):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    B, H, block_size, M = 3, 2, 16, 8
    torch.manual_seed(D)
    randn = partial(torch.randn, device=device, dtype=torch.float32)
    query, key, value = randn(B, 3, H, D).unbind(1)
    cache = randn(2, B * M, H, block_size, D)
    table = torch.arange(B * M, dtype=torch.int32, device=device).view(B, M)
    lens = torch.tensor([0, 70, 127], dtype=torch.int32, device=device)
    slots = torch.arange(B, device=device)
    made = []
    for prefetch in (True, False):
        kv, workspace = cache.clone(), SplitWorkspace(B, H, D, query.device)
        out = paged_attention_append_split_triton(
            query, key, value, *kv, table, lens, slots, workspace, splits, prefetch=prefetch
        )
        made.append((out, kv))
    assert all(map(torch.equal, *made))
