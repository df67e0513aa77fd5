"""Calls of the kernels' wrappers, each with an engine's arguments: tensors that need have no numbers."""

from functools import partial
from unittest.mock import patch

import torch

from labkit.kernels import (
    HeadTransform,
    attention_shares,
    decode_ends,
    distribution,
    eight_bit,
    fused_linear,
    host_numbers,
    kv_append,
    library_linear,
    ngram_drafts,
    packed_attention,
    packed_prompts,
    paged_attention,
    paged_attention_append,
    residual_sum,
    sampling,
    shared_attention,
    split_attention,
    tiles,
    verify_rows,
)
from labkit.kernels import linear_residual as residual

H, FEW = 12, 4  # heads of queries, and of keys where each is for a group of three


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


int32, int64, float32 = (partial(empty, dtype=d) for d in (torch.int32, torch.int64, torch.float32))


def norm_linear(
    M: int, N: int, K: int, dtype: torch.dtype, prefetch: bool = False, tile: tiles.Tile | None = None
) -> None:
    parts = -(-K // 64)  # as many as a `linear_residual` of 64 outputs a program leaves
    layer = fused_linear.NormLinear(empty(N, K, dtype=dtype), float32(N), float32(N), 1e-5)
    statistics = fused_linear.RowStatistics(float32(M, parts, 2), 64)
    fused_linear.norm_linear_triton(
        empty(M, K, dtype=dtype), statistics, layer, gelu=N == 4 * K, prefetch=prefetch, tile=tile
    )


def linear_residual(
    M: int, N: int, K: int, dtype: torch.dtype, prefetch: bool = False, tile: tiles.Tile | None = None
) -> None:
    x, weight, bias, rest = (empty(*shape, dtype=dtype) for shape in ((M, K), (N, K), (N,), (M, N)))
    residual.linear_residual_triton(x, weight, bias, rest, prefetch=prefetch, tile=tile)


def numbers() -> None:
    """To a GPU and back."""
    with patch.object(torch.Tensor, "is_pinned", lambda numbers: True):  # of numbers that there are not
        host_numbers.scatter_words_triton(torch.empty(9, dtype=torch.int64), empty(6, dtype=torch.int32))
        host_numbers.copy_numbers_triton(torch.empty(9, dtype=torch.int64), int64(9))
        host_numbers.copy_numbers_triton(int64(9), torch.empty(9, dtype=torch.int64))


def caches(kept: torch.dtype, G: int, block_size: int, D: int) -> list[torch.Tensor]:
    """Of keys and of values, in 8 bits with room for scales."""
    size = eight_bit.bytes_of_head(block_size, D, kept)
    pools = (empty(100, G, size // kept.itemsize, dtype=kept) for _ in range(2))
    return [pool.narrow(-1, 0, block_size * D).unflatten(-1, (block_size, D)) for pool in pools]


def attention(
    form: str,
    D: int,
    block_size: int,
    dtype: torch.dtype,
    B: int = 8,
    splits: int = 1,
    kept: torch.dtype | None = None,
    G: int = H,
) -> None:
    """G: heads of keys; where several of queries share one, heads are normed and rotated as well."""
    S, M = B + 1, 1024 // block_size
    transform = transform_of(D, dtype) if G < H else None
    query, key, value = empty(B, H + 2 * G, D, dtype=dtype).split([H, G, G], dim=1)
    cache = caches(kept or dtype, G, block_size, D)
    if form == "paged":
        paged_attention.paged_attention_triton(query, key, value, *cache, int32(B, M), int32(B), 1000)
        return
    arguments = query, key, value, *cache, int32(S, M), int32(S), int64(B)
    if form == "append":
        paged_attention_append.paged_attention_append_triton(*arguments, 1000)
        return
    if form == "shares":
        plan = attention_shares.SharePlan(B, G, D, cache[0].dtype, query.device, H // G, block_size)
        attention_shares.plan_shares_triton(*arguments[-2:], plan)
        shares = split_attention.SplitWorkspace(B, H, D, query.device, len(plan.row_of))
        shared_attention.paged_attention_append_shares_triton(*arguments, shares, plan, transform)
        return
    workspace = split_attention.SplitWorkspace(B, H, D, query.device)
    split_attention.paged_attention_append_split_triton(*arguments, workspace, splits, transform)


def transform_of(D: int, dtype: torch.dtype) -> HeadTransform:
    angles, norms = (float32(1024, D // 2) for _ in range(2)), (empty(D, dtype=dtype) for _ in range(2))
    return HeadTransform(*angles, *norms, 1e-6)


def gated(M: int, N: int, K: int, dtype: torch.dtype, tile: tiles.Tile | None = None) -> None:
    layer = fused_linear.NormLinear(empty(N, K, dtype=dtype), None, None, 1e-5, is_gated=True)
    statistics = fused_linear.RowStatistics(float32(M, -(-K // 64), 2), 64)
    fused_linear.norm_linear_triton(empty(M, K, dtype=dtype), statistics, layer, prefetch=True, tile=tile)


def packed(
    D: int,
    dtype: torch.dtype,
    T: int,
    P: int,
    block_size: int = 64,
    kept: torch.dtype | None = None,
    G: int = H,
) -> None:
    """G: as of `attention`."""
    query, key, value = empty(T, H + 2 * G, D, dtype=dtype).split([H, G, G], dim=1)
    cache = caches(kept or dtype, G, block_size, D)
    transform = transform_of(D, dtype) if G < H else None
    rows = packed_prompts.PackedRows(int32(P + 1), int32(P), int32(P, 1024 // block_size))
    packed_prompts.kv_append_packed_triton(*cache, key, value, rows, transform)
    packed_attention.packed_attention_triton(query, *cache, rows, transform)


def append(form: str, D: int, dtype: torch.dtype, B: int = 8) -> None:
    cache = [empty(100, H, 64, D, dtype=dtype) for _ in range(2)]
    _, key, value = empty(B, 3, H, D, dtype=dtype).unbind(1)
    if form == "indexed":
        kv_append.kv_append_triton(*cache, key, value, int64(B), int64(B), int64(B))
    elif form == "full batch":
        kv_append.kv_append_triton_full_batch(*cache, key, value, int64(B), 16)
    else:
        kv_append.kv_append_triton_identity_pos(*cache, key, value, int64(B), int32(B))


def ends(dtype: torch.dtype, B: int = 8, E: int = 768, V: int = 50257) -> None:
    slots = int64(B), int64(B + 1), int32(B + 1)
    decode_ends.embed_slots_triton(*slots, empty(V, E, dtype=dtype), empty(1024, E, dtype=dtype))
    decode_ends.greedy_advance_triton(empty(B, V + 47, dtype=dtype).narrow(1, 0, V), *slots)
    rows = empty(B, E, dtype=dtype), empty(B, E, dtype=dtype)
    behind = fused_linear.NormLinear(rows[0], None, None, 1e-5)
    residual_sum.residual_sum_triton(*rows)
    residual_sum.residual_sum_triton(*rows, behind)
    parts = residual_sum.PeerParts(rows[0], int64(2), B * E, 1)
    residual_sum.residual_sum_of_peers_triton(parts, rows[1])
    residual_sum.residual_sum_of_peers_triton(parts, rows[1], behind)
    residual_sum.row_norm_triton(rows[0], empty(E, dtype=torch.float32), behind)
    residual_sum.row_norm_triton(rows[0], None, behind)
    library_linear.silu_gate_triton(empty(300, 3072, dtype=dtype))


def draw(dtype: torch.dtype, B: int = 8, V: int = 50257) -> None:
    S = B + 1
    state = distribution.SamplingState(*(empty(S, dtype=each) for each in distribution.DTYPES))
    logits = empty(B, V + 47, dtype=dtype).narrow(1, 0, V)
    for is_filtered in (True, False):
        sampling.draw_triton(logits, int64(B), int64(B), int64(S), state, is_filtered)


def drafts(S: int = 9, W: int = 8200) -> None:
    texts = empty(S, W, dtype=torch.int32)
    ngram_drafts.ngram_drafts_triton(texts, int32(S), int64(8), int64(8), 7)


def verified(B: int = 8, K: int = 3, S: int = 9, W: int = 8200) -> None:
    """What surrounds the forward of a step that verifies drafts."""
    drafts, made = int64(B, K), int64(B, K + 1)
    slots = int64(B), int64(S), int32(S), int64(B)
    verify_rows.verify_rows_triton(drafts, *slots)
    num_accepted = verify_rows.accept_drafts_triton(made, drafts)
    mapping, last, lens, ends = slots
    verify_rows.advance_verified_triton(
        made, drafts, num_accepted, mapping, ends, last, lens, int64(S), int32(S, W)
    )
