"""Parts of the kernel of all layers: its barrier, and the products of a share of the outputs."""

import torch
from attention_append_cases import KERNEL_DEVICE, needs_triton

from labkit.kernels.persistent_phases import (
    add_product,
    arrive,
    leave,
    load_row,
    load_vector,
    load_weights,
    norm_product,
    wait,
)
from labkit.kernels.triton_runtime import tl, triton


@triton.jit
def pass_barriers(barrier_ptr, counts_ptr):
    arrive(barrier_ptr)
    wait(barrier_ptr, 1)
    tl.store(counts_ptr, tl.load(barrier_ptr))
    arrive(barrier_ptr)
    wait(barrier_ptr, 2)
    tl.store(counts_ptr + 1, tl.load(barrier_ptr))
    leave(barrier_ptr, 3)


@needs_triton
def test_a_barrier_counts_arrivals_and_is_at_0_when_the_last_has_left():
    barrier, counts = (torch.zeros(n, dtype=torch.int32, device=KERNEL_DEVICE) for n in (1, 2))
    for _ in range(2):  # the second launch finds it as the first did
        pass_barriers[(1,)](barrier, counts)
        assert counts.tolist() == [1, 2] and barrier.tolist() == [0]


@triton.jit
def share_of_products(
    x_ptr,
    weight_ptr,
    vector_ptr,
    normed_ptr,
    added_ptr,
    first,
    end,
    N: tl.constexpr,
    K: tl.constexpr,
    TILES: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    weights = load_weights(weight_ptr, first, end, K, TILES, BLOCK_N, BLOCK_K)
    vector = load_vector(vector_ptr, first, end, TILES, BLOCK_N)
    row = load_row(x_ptr, K, BLOCK_N, BLOCK_K)
    add_product(row, (weights, vector), added_ptr, (first, end), CHUNKS, TILES, BLOCK_N)
    layer = weights, vector, vector
    norm_product(x_ptr, layer, normed_ptr, (first, end), 1e-5, 1, N, K, False, TILES, BLOCK_N, BLOCK_K)


@needs_triton
def test_a_share_writes_its_own_outputs_alone():
    """Outputs 3 to 12 of 17, in two tiles of 8; 21 inputs, in two chunks of 16."""
    N, K, first, end = 17, 21, 3, 12
    generator = torch.Generator(KERNEL_DEVICE).manual_seed(0)
    x, weight, vector, rest = (
        torch.randn(*shape, generator=generator, device=KERNEL_DEVICE) for shape in ((K,), (N, K), (N,), (N,))
    )
    normed, added = torch.full_like(rest, torch.nan), rest.clone()
    share_of_products[(1,)](
        x, weight, vector, normed, added, first, end, N, K, TILES=2, CHUNKS=2, BLOCK_N=8, BLOCK_K=16
    )
    share, others = slice(first, end), [*range(first), *range(end, N)]
    torch.testing.assert_close(added[share], (rest + weight @ x + vector)[share])
    assert torch.equal(added[others], rest[others])
    rstd = (x.var(unbiased=False) + 1e-5).rsqrt()
    torch.testing.assert_close(normed[share], (rstd * (weight @ x - x.mean() * vector) + vector)[share])
    assert normed[others].isnan().all()
