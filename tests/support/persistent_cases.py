"""Cases for all layers in one kernel, and what they are compared with: the definition in float64.

Every place of the pools that holds no token is NaN, so whatever reads one is found out. Whole pools are
compared, so whatever is written beside its place is, too.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from attention_append_cases import KERNEL_DEVICE, NOBODY
from torch import Tensor

from labkit.kernels import NormLinear, fold_layer_norm
from labkit.kernels.eight_bit import as_stored, bytes_of_head, is_eight_bit, read_heads, write_heads
from labkit.kernels.persistent_layers import LayerTable
from labkit.model import LinearWeights

# Of numbers up to about 8 after all layers: in half precision a few units in their last place, for each
# layer rounds six times.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2**-6, torch.bfloat16: 2**-3}
EPS = 1e-2  # large enough to be missed


class OneLayer(NamedTuple):
    qkv: NormLinear
    attention_out: LinearWeights
    mlp_in: NormLinear
    mlp_out: LinearWeights


class Case(NamedTuple):
    """The arguments of one call, in their order."""

    x: Tensor
    table: LayerTable
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    slot_mapping: Tensor


def make_case(
    length: int,
    L: int = 2,
    H: int = 2,
    D: int = 8,
    inner: int = 48,
    block_size: int = 4,
    num_tables: int = 2,
    dtype: torch.dtype = torch.float32,
    device: str = KERNEL_DEVICE,
    room: int = 0,
    bias: bool = True,
    seed: int = 0,
    kept: torch.dtype | None = None,
) -> Case:
    """Random layers and a request of this context length, in any slot and blocks. A row of NOBODY has the
    last slot. room: tokens that a table has room for, at least. kept: the caches' dtype, if it is one of 8
    bits."""
    generator = torch.Generator(device).manual_seed(seed)
    E, S = H * D, 3

    def randn(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device) * scale

    def linear(N: int, K: int) -> LinearWeights:
        return LinearWeights(
            randn(N, K, scale=0.7 * K**-0.5).to(dtype), randn(N, scale=0.3).to(dtype) if bias else None
        )

    def folded(N: int, K: int) -> NormLinear:
        norm = 1 + randn(K, scale=0.2), randn(K, scale=0.2)
        return fold_layer_norm(*(n.to(dtype) for n in norm), EPS, *linear(N, K))

    layers = [OneLayer(folded(3 * E, E), linear(E, E), folded(inner, E), linear(E, inner)) for _ in range(L)]
    needed = max(length, 0) // block_size + 1  # the new token's block included
    N, M = needed + 1, max(needed, -(-room // block_size))
    slots = torch.randperm(S - 1, generator=generator, device=device)[:1]
    tables = torch.zeros(num_tables, S, M, dtype=torch.int32, device=device)
    context_lens = torch.full((S,), NOBODY, dtype=torch.int32, device=device)
    k_cache, v_cache = (
        torch.full((L, N, H, block_size, D), torch.nan, dtype=dtype, device=device) for _ in range(2)
    )
    if length == NOBODY:
        slots[0] = S - 1
    else:
        context_lens[slots] = length
        for table in tables:
            table[slots[0], :needed] = torch.randperm(N, generator=generator, device=device)[:needed].int()
        t = torch.arange(length, device=device)
        for layer in range(L):
            block = tables[layer % num_tables, slots[0]].long()[t // block_size]
            for cache in (k_cache, v_cache):
                cache[layer, block, :, t % block_size] = randn(length, H, D).to(dtype)
    if kept is not None:
        k_cache, v_cache = (eight_bit_pool(cache, kept) for cache in (k_cache, v_cache))
    return Case(randn(1, E).to(dtype), LayerTable(layers), k_cache, v_cache, tables, context_lens, slots)


def eight_bit_pool(pool: Tensor, kept: torch.dtype) -> Tensor:
    """A pool [L, N, G, block_size, D] as an 8-bit cache keeps it, in memory in which all else is NaN."""
    *lead, block_size, D = pool.shape
    size = bytes_of_head(block_size, D, kept)
    made = torch.full((*lead, size), 255, dtype=torch.uint8, device=pool.device).view(kept)
    cache = made[..., : block_size * D].unflatten(-1, (block_size, D))
    write_heads(cache, ..., pool)
    return cache


def copied(case: Case) -> Case:
    """The same, with memory of its own for what a call changes."""
    return case._replace(x=case.x.clone(), k_cache=of_its_own(case.k_cache), v_cache=of_its_own(case.v_cache))


def of_its_own(cache: Tensor) -> Tensor:
    """A copy of a cache, of its scales too."""
    if not is_eight_bit(cache):
        return cache.clone()
    base = cache.untyped_storage().clone()
    return torch.empty(0, dtype=cache.dtype, device=cache.device).set_(
        base, cache.storage_offset(), cache.shape, cache.stride()
    )


def expected(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Output and pools after the call by the definition, in float64, nothing rounded on the way but what is
    kept in 8 bits."""
    x = case.x.double()
    k_cache, v_cache = (read_heads(cache, ..., x.dtype).double() for cache in (case.k_cache, case.v_cache))
    H, block_size, D = case.k_cache.shape[2:]
    slot = int(case.slot_mapping)
    n = int(case.context_lens[slot])
    t = torch.arange(max(n, 0), device=x.device)
    for layer_idx, layer in enumerate(case.table.layers):
        query, key, value = norm_linear(x, layer.qkv).view(3, H, D)
        key, value = as_stored(key, case.k_cache), as_stored(value, case.v_cache)
        table = case.block_tables[layer_idx % len(case.block_tables), slot].long()
        places = layer_idx, table[t // block_size], slice(None), t % block_size
        keys, values = torch.cat([k_cache[places], key[None]]), torch.cat([v_cache[places], value[None]])
        weights = (torch.einsum("hd,thd->ht", query, keys) * D**-0.5).softmax(dim=-1)
        if n >= 0:
            k_cache[layer_idx, table[n // block_size], :, n % block_size] = key
            v_cache[layer_idx, table[n // block_size], :, n % block_size] = value
        x = x + linear(torch.einsum("ht,thd->hd", weights, values).view(1, -1), layer.attention_out)
        x = x + linear(F.gelu(norm_linear(x, layer.mlp_in), approximate="tanh"), layer.mlp_out)
    return x, k_cache, v_cache


def norm_linear(x: Tensor, layer: NormLinear) -> Tensor:
    normalized = F.layer_norm(x, x.shape[1:], eps=layer.eps)
    return F.linear(normalized, layer.weight.double(), layer.bias.double())


def linear(x: Tensor, layer: LinearWeights) -> Tensor:
    return F.linear(x, layer.weight.double(), None if layer.bias is None else layer.bias.double())


def assert_is_all_layers(out: Tensor, after: Case, before: Case, tolerance: float | None = None) -> None:
    """out and `after` are what a call leaves of `before`."""
    tolerance = tolerance or TOLERANCE[out.dtype]
    assert out is after.x
    pools = (read_heads(cache, ..., torch.float64) for cache in (after.k_cache, after.v_cache))
    for have, want in zip((out, *pools), expected(before), strict=True):
        torch.testing.assert_close(have.double(), want, rtol=tolerance, atol=tolerance, equal_nan=True)
