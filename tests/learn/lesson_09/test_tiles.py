"""Lesson 09: tiles of matrices, and what stands for the reader's kernels where Triton cannot run."""

from dataclasses import replace

import pytest
import torch

from labkit.kernels import fold_layer_norm, norm_linear_plain, triton_status
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.triton_runtime import tl, triton
from labkit.learn.lesson_09 import tiles
from labkit.learn.lesson_09.tiles import gelu, load_parts, load_tile, store_tile


@triton.jit
def _copy_with_gelu(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m, n = tl.arange(0, BLOCK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    store_tile(out_ptr, m, n, M, N, gelu(load_tile(x_ptr, m, n, M, N)))


@pytest.mark.slow
def test_a_tile_is_loaded_and_stored_within_its_matrix():
    x = torch.randn(3, 10)
    out = torch.full((4, 10), torch.nan)
    _copy_with_gelu[(3,)](x, out[:3], 3, 10, BLOCK=4)
    torch.testing.assert_close(out[:3], torch.nn.functional.gelu(x, approximate="tanh"))
    assert out[3].isnan().all()


@triton.jit
def _count_parts(parts_ptr, out_ptr, M, K, num_parts, width, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr):
    m, p = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_P)
    means, squares, counts = load_parts(parts_ptr, m, M, K, num_parts, width, BLOCK_P)
    store_tile(out_ptr, m, p, M, BLOCK_P, means * 100 + squares * 10 + counts)


@pytest.mark.slow
def test_parts_come_with_their_counts():
    parts = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])  # of a row of 10 columns, 4 each
    out = torch.empty(1, 4)
    _count_parts[(1,)](parts, out, 1, 10, 3, 4, BLOCK_M=2, BLOCK_P=4)
    assert out.tolist() == [[124.0, 344.0, 562.0, 0.0]]


def test_pytorch_stands_for_a_kernel_where_triton_cannot_run(monkeypatch):
    monkeypatch.setattr(tiles, "triton_status", lambda: replace(triton_status(), mode="off"))
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    assert torch.equal(tiles.launch_product(None, x, weight), x @ weight.T)
    layer = fold_layer_norm(torch.ones(8), torch.zeros(8), 1e-5, weight, None)
    statistics = row_statistics(x, 8)
    made = tiles.launch_norm_linear(None, x, statistics, layer, gelu=True)
    assert torch.equal(made, norm_linear_plain(x, statistics, layer, gelu=True))


def test_a_product_has_a_program_per_tile():
    assert tiles.grid_of(17, 129, tiles.TILE) == (2, 2)
    assert tiles.grid_of(16, 128, tiles.TILE) == (1, 1)
