"""Attention in the kernel of all layers: units, and how a row's splits are put together."""

import pytest
import torch
from attention_append_cases import KERNEL_DEVICE, needs_triton

from labkit.kernels.persistent_attention import load_attended, place_of_unit
from labkit.kernels.triton_runtime import tl, triton


@triton.jit
def places(slot_mapping_ptr, context_lens_ptr, out_ptr, units, H: tl.constexpr, SPLITS: tl.constexpr):
    unit = tl.program_id(0)
    b, h, split, slot, context_len = place_of_unit(unit, slot_mapping_ptr, context_lens_ptr, units, H, SPLITS)
    tl.store(out_ptr + unit * 5, b)
    tl.store(out_ptr + unit * 5 + 1, h)
    tl.store(out_ptr + unit * 5 + 2, split)
    tl.store(out_ptr + unit * 5 + 3, slot)
    tl.store(out_ptr + unit * 5 + 4, context_len)


@needs_triton
def test_units_go_through_splits_then_heads_then_rows_and_past_the_last_there_is_nobody():
    slot_mapping = torch.tensor([4, 1], device=KERNEL_DEVICE)
    context_lens = torch.tensor([0, 11, 0, 0, 14], dtype=torch.int32, device=KERNEL_DEVICE)
    out = torch.zeros(14, 5, dtype=torch.int32, device=KERNEL_DEVICE)
    places[(14,)](slot_mapping, context_lens, out, 12, H=3, SPLITS=2)
    expected = [
        [b, h, split, slot, length]
        for b, (slot, length) in enumerate([(4, 14), (1, 11)])
        for h in range(3)
        for split in range(2)
    ]
    assert out[:12].tolist() == expected
    assert out[12:, 4].tolist() == [-1, -1]


@triton.jit
def attended(
    partial_ptr,
    log_sums_ptr,
    out_ptr,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = load_attended((partial_ptr, log_sums_ptr), 0, H, D, SPLITS, BLOCK_N, BLOCK_K)
    n, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    for c in tl.static_range(CHUNKS):
        tl.store(out_ptr + (n * CHUNKS + c)[:, None] * BLOCK_K + k[None, :], row[c])


@needs_triton
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_splits_are_put_together_by_their_shares_of_the_softmax(splits: int):
    """One split of a head is empty, as behind a short context: its logarithm is that of 0."""
    H, D, block_n, block_k = 3, 5, 2, 8
    generator = torch.Generator(KERNEL_DEVICE).manual_seed(splits)
    parts = torch.randn(splits, H, D, generator=generator, device=KERNEL_DEVICE)
    log_sums = 5 * torch.randn(splits, H, generator=generator, device=KERNEL_DEVICE)
    if splits > 1:
        log_sums[-1, 1], parts[-1, 1] = -torch.inf, 0.0
    out = torch.full((block_n, 2, block_k), torch.nan, device=KERNEL_DEVICE)
    attended[(1,)](parts, log_sums, out, H, D, SPLITS=splits, CHUNKS=2, BLOCK_N=block_n, BLOCK_K=block_k)
    expected = (log_sums.softmax(dim=0)[:, :, None] * parts).sum(dim=0).flatten()
    for row in out.view(block_n, -1)[:, : H * D]:
        torch.testing.assert_close(row, expected)
