"""Heads of keys that serve a group of queries, and heads that are normed and rotated as they are loaded: each
form of attention that stores as it goes, and of prompts in chunks, against the definition in float64."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_append_cases import (
    EPS,
    NOBODY,
    TOLERANCE,
    assert_attends_and_stores,
    bits,
    dense_attention,
    in_shares,
    make_case,
    make_transform,
    pools_after,
    split_in,
)
from packed_cases import PackedCase, dense_prompts, make_packed
from torch import Tensor
from triton_marks import KERNEL_DEVICE, dtypes, needs_triton

from labkit.kernels import (
    HeadTransform,
    attention_shares,
    kv_append_packed_plain,
    kv_append_packed_triton,
    packed_attention_plain,
    packed_attention_triton,
    paged_attention_append_plain,
    paged_attention_append_triton,
)
from labkit.kernels.attention_shares import SharePlan
from labkit.kernels.packed_attention import PackedTile

pytestmark = pytest.mark.slow

WITH_TRANSFORM = [
    pytest.param(paged_attention_append_plain, id="plain"),
    pytest.param(split_in(1), id="in 1", marks=needs_triton),
    pytest.param(split_in(3), id="in 3", marks=needs_triton),
    pytest.param(in_shares, id="in shares", marks=needs_triton),
]
ALL = [*WITH_TRANSFORM, pytest.param(paged_attention_append_triton, id="triton", marks=needs_triton)]
PACKED = [
    pytest.param(kv_append_packed_plain, packed_attention_plain, id="plain"),
    pytest.param(kv_append_packed_triton, packed_attention_triton, id="triton", marks=needs_triton),
]
# Queries to a key, whether heads are normed before they are rotated, and the dtype.
TRANSFORMS = [
    (1, False, torch.float32),
    (3, True, torch.float32),
    (4, True, torch.float16),
    (3, False, torch.bfloat16),
]
lengths = [9, NOBODY, 0, 66, 4]


def transformed(heads: Tensor, positions: Tensor, norm: Tensor | None, transform: HeadTransform) -> Tensor:
    """The definition in float64, of heads [B, H, D]."""
    x = heads.double()
    if norm is not None:
        x = F.rms_norm(x, x.shape[-1:], norm.double(), EPS)
    cos, sin = (torch.cat([t, t], 1)[positions.long(), None].double() for t in (transform.cos, transform.sin))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def assert_stored(pools: tuple[Tensor, Tensor], expected: list[Tensor], key: Tensor) -> None:
    """The bits that are expected, but for the rotated keys, which may be off by a rounding. key: of their
    dtype."""
    k_bits, v_bits = (bits(pool) for pool in pools)
    assert torch.equal(v_bits, expected[1])
    keys, wanted = (each.view(key.dtype) for each in (k_bits, expected[0]))
    tolerance = TOLERANCE[key.dtype]
    torch.testing.assert_close(keys, wanted, rtol=4 * tolerance, atol=4 * tolerance, equal_nan=True)


@pytest.mark.parametrize("group, norms, dtype", TRANSFORMS, ids=str)
@pytest.mark.parametrize("attention", WITH_TRANSFORM)
def test_heads_are_transformed_before_they_meet(
    attention: Callable, group: int, norms: bool, dtype: torch.dtype
):
    assert_transforms(attention, lengths, norms, group=group, D=20, dtype=dtype)


def assert_transforms(
    attention: Callable, lengths: list[int], norms: bool, device: str = KERNEL_DEVICE, **sizes: Any
) -> None:
    D, dtype = sizes["D"], sizes["dtype"]
    case, before = (make_case(lengths, **sizes, device=device) for _ in range(2))
    transform = make_transform(D, norms, dtype, device, positions=max(lengths) + 1)
    out = attention(**case.arguments, transform=transform)
    past = torch.tensor(case.context_lens, device=out.device).clamp(min=0)
    query = transformed(case.arguments["query"], past, transform.query_norm, transform)
    key = transformed(case.arguments["key_new"], past, transform.key_norm, transform)
    changed = {"query": query, "key_new": key.to(dtype)}
    expected = before._replace(arguments=before.arguments | changed)
    tolerance = 4 * TOLERANCE[dtype]  # queries and keys are rounded once more
    torch.testing.assert_close(out.double(), dense_attention(expected), rtol=tolerance, atol=tolerance)
    assert_stored((case.k_pool, case.v_pool), list(pools_after(expected)), key.to(dtype))


@needs_triton
def test_shares_that_begin_within_a_box_stay_in_their_block(monkeypatch: pytest.MonkeyPatch):
    """Where each query has its own key, as in Llama 2, many rows are cut into pieces of half a box."""
    monkeypatch.setattr(attention_shares, "MANY_HEADS", 1)
    assert SharePlan(2, 2, 128, torch.float16, torch.device("cpu"), block_size=64).reading(2).tokens == 8
    sizes = {"H": 2, "D": 128, "block_size": 64, "dtype": torch.float16}
    assert_transforms(in_shares, [300, 75], norms=False, group=1, **sizes)


@needs_triton
@pytest.mark.parametrize(
    "D, dtype", [(64, torch.float16), (128, torch.float16), (64, torch.float32)], ids=str
)
def test_a_program_that_has_several_pieces(D: int, dtype: torch.dtype):
    assert_attends_and_stores(
        split_in(1), make_case([600, 0, 512], H=1, D=D, block_size=16, group=2, dtype=dtype)
    )


@pytest.mark.parametrize("group, norms, dtype", [*TRANSFORMS, (4, None, torch.float32)], ids=str)
@pytest.mark.parametrize("append, attention", PACKED)
def test_prompts_in_chunks(
    append: Callable, attention: Callable, group: int, norms: bool | None, dtype: torch.dtype
):
    """With more pads than there are positions, in tiles that hold parts of a row's group."""
    case = make_packed([18, 1, 3], [5, 30, 0], pads=45, D=20, block_size=16, dtype=dtype, group=group)
    transform = None if norms is None else make_transform(20, norms, dtype, KERNEL_DEVICE, positions=40)
    if attention is packed_attention_triton:
        attention = partial(attention, tile=PackedTile(16, 32, 4, 1))
    assert_prompts(append, attention, case, transform)


def assert_prompts(
    append: Callable, attention: Callable, case: PackedCase, transform: HeadTransform | None
) -> None:
    dtype = case.query.dtype
    append(*case.caches, case.key, case.value, case.rows, transform=transform)
    out = attention(case.query, *case.caches, case.rows, transform=transform)
    expected = case
    if transform is not None:
        positions = case.rows.positions(len(case.query))
        key = transformed(case.key, positions, transform.key_norm, transform).to(dtype)
        keys = [
            torch.cat([keys[:before], key[first:end]])
            for keys, (first, end, before) in zip(case.keys, case.prompts, strict=True)
        ]
        query = transformed(case.query, positions, transform.query_norm, transform)
        expected = case._replace(query=query, key=key, keys=keys)
    tolerance = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), dense_prompts(expected), rtol=tolerance, atol=tolerance)
    for p, (first, end, before) in enumerate(case.prompts):
        for row in range(first, end):
            block, pos = divmod(before + row - first, case.k_pool.shape[3])
            stored = case.caches[0][case.rows.block_tables[p, block], :, pos]
            torch.testing.assert_close(stored, expected.key[row], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("attention", WITH_TRANSFORM)
def test_a_transform_or_group_that_does_not_fit_is_refused(attention: Callable):
    arguments = make_case([7, 5], group=3, D=8).arguments
    fits = make_transform(8, True, torch.float32, KERNEL_DEVICE)
    for change, message in (
        ({"sin": None}, "transform has one of cos and sin"),
        ({"cos": fits.cos[:, 1:]}, r"transform.cos has shape \[200, 3\], expected \[P, 4\]"),
        ({"cos": fits.cos.double()}, "transform.cos is torch.float64"),
        ({"key_norm": fits.key_norm[1:]}, "transform.key_norm has shape"),
        ({"query_norm": fits.query_norm.half()}, "transform.query_norm is torch.float16"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            attention(**arguments, transform=fits._replace(**change))
    with pytest.raises(ValueError, match=r"^key_new has 2 heads, of which the 5 of query are no multiple"):
        attention(**arguments | {"query": arguments["query"][:, 1:]})


# --- on a GPU --------------------------------------------------------------------------------------

# Heads of keys, queries to each, and their size: of SmolLM2-135M, Llama 3.2 1B, Qwen3-0.6B and Llama 2
# 7B.
SHAPES = {"smollm2": (3, 3, 64), "llama": (8, 4, 64), "qwen3": (8, 2, 128), "llama2": (32, 1, 128)}
shapes = pytest.mark.parametrize("H, group, D", SHAPES.values(), ids=SHAPES)
full_lengths = [0, 1023, 64, 63, NOBODY, *range(1, 900, 37)]


@pytest.mark.cuda
@dtypes
@shapes
@pytest.mark.parametrize("attention", ALL)
def test_on_a_gpu_groups_at_full_size(attention: Callable, H: int, group: int, D: int, dtype: torch.dtype):
    sizes = {"H": H, "D": D, "block_size": 64, "group": group, "dtype": dtype}
    for lengths in (full_lengths, full_lengths[:5]):  # the few by wide programs
        assert_attends_and_stores(attention, make_case(lengths, **sizes, device="cuda"))
    if attention is not paged_attention_append_triton:
        assert_transforms(attention, full_lengths, norms=D == 128, device="cuda", **sizes)


@pytest.mark.cuda
@needs_triton
@shapes
@pytest.mark.parametrize("attention", [split_in(7), in_shares], ids=["in 7", "in shares"])
def test_on_a_gpu_the_order_in_which_programs_arrive_changes_no_bit(
    attention: Callable, H: int, group: int, D: int
):
    case = make_case(full_lengths, H, D, 64, torch.bfloat16, "cuda", group=group)
    transform = make_transform(D, True, torch.bfloat16, "cuda", positions=1024)
    first = attention(**case.arguments, transform=transform)
    for _ in range(50):
        assert torch.equal(attention(**case.arguments, transform=transform), first)


@pytest.mark.cuda
@needs_triton
@dtypes
@shapes
@pytest.mark.parametrize("rows", [[30, 0, 65, 1, 129], [512, 1, 600]], ids=["few", "many"])
def test_on_a_gpu_prompts_in_chunks_at_full_size(
    H: int, group: int, D: int, rows: list[int], dtype: torch.dtype
):
    before = [0, 9, 64, 700, 37][: len(rows)]
    sizes = {"pads": 7, "H": H, "D": D, "block_size": 64, "dtype": dtype, "device": "cuda", "group": group}
    transform = make_transform(D, D == 128, dtype, "cuda", positions=1024)
    for each in (None, transform):
        case = make_packed(rows, before, **sizes)
        assert_prompts(kv_append_packed_triton, packed_attention_triton, case, each)
