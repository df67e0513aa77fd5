"""Keys and values in 8 bits: what is lost of them, what is not, and each kernel beside its plain twin."""

import pytest
import torch
from attention_append_cases import NOBODY, in_shares, make_case, make_transform
from hypothesis import given
from hypothesis import strategies as st
from packed_cases import LAYER, make_packed
from persistent_cases import eight_bit_pool
from torch import Tensor
from triton_marks import KERNEL_DEVICE, dtypes, needs_triton

from labkit.kernels import (
    kv_append_packed_plain,
    kv_append_packed_triton,
    packed_attention_plain,
    packed_attention_triton,
    paged_attention_append_plain,
    paged_attention_append_triton,
    paged_attention_triton,
)
from labkit.kernels.eight_bit import (
    LEAST_SCALE,
    LIMITS,
    ZERO,
    as_stored,
    bytes_of_head,
    dequantize,
    quantize,
    read_heads,
    scales_of,
)

kept_in = pytest.mark.parametrize("kept", LIMITS, ids=str)
numbers = st.lists(st.floats(-(2.0**80), 2.0**80, width=32), min_size=1, max_size=9)


# --- what is lost ------------------------------------------------------------------------------------------


@kept_in
@given(numbers=numbers)
def test_a_value_is_off_by_little_of_its_heads_largest(kept: torch.dtype, numbers: list[float]):
    """By half a scale in integers; in floats by 1/16 of itself, or half of the least float there is."""
    heads = torch.tensor(numbers, dtype=torch.float32)
    values, scale = quantize(heads, kept)
    scale = scale.double()
    error = (dequantize(values, scale, torch.float64) - heads.double()).abs()
    bound = scale / 2 if kept == torch.uint8 else torch.maximum(heads.double().abs() / 16, scale * 2**-10)
    assert (error <= bound * (1 + 2**-12)).all()
    assert scale >= LEAST_SCALE and (dequantize(values, scale, torch.float32)[heads == 0] == 0).all()


@kept_in
def test_the_largest_value_of_a_head_is_the_largest_there_is(kept: torch.dtype):
    values, scales = quantize(torch.tensor([[3.0, -6.0], [0.5, 0.0]]), kept)
    assert (values.float() - (ZERO if kept == torch.uint8 else 0)).abs().amax(-1).tolist() == [
        LIMITS[kept]
    ] * 2
    torch.testing.assert_close(scales.float() * LIMITS[kept], torch.tensor([6.0, 0.5]), rtol=2**-8, atol=0)


@kept_in
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_head_with_a_value_that_is_not_finite_reads_as_nan_and_others_do_not(kept: torch.dtype, bad: float):
    """So it reaches the logits, and ends its own request."""
    read = dequantize(*quantize(torch.tensor([[bad, 1.0], [2.0, 1.0]]), kept), torch.float32)
    assert read[0].isnan().all() and read[1].isfinite().all()


# --- in a cache --------------------------------------------------------------------------------------------


@kept_in
@pytest.mark.parametrize("block_size, D", [(4, 8), (1, 5), (5, 3), (64, 64)])
def test_scales_lie_behind_the_values_and_nothing_lies_on_top_of_another(
    kept: torch.dtype, block_size: int, D: int
):
    pool = torch.randn(2, 3, 2, block_size, D)
    cache = eight_bit_pool(pool, kept)
    assert scales_of(cache).shape == pool.shape[:-1]
    values, scales = quantize(pool, kept)
    assert torch.equal(cache.float(), values.float()) and torch.equal(scales_of(cache), scales)
    assert torch.equal(scales_of(cache[1]), scales[1])
    assert torch.equal(read_heads(cache, (0, 2), torch.float32), as_stored(pool[0, 2], cache))
    assert bytes_of_head(64, 64, kept) == 64 * 64 + 64 * 2


def in_eight_bits(case, kept: torch.dtype):
    """The same case with its pools in 8 bits: slots that hold no token read as NaN."""
    pools = [eight_bit_pool(pool, kept) for pool in (case.k_pool, case.v_pool)]
    layers = dict(zip(("k_cache_layer", "v_cache_layer"), (p[len(p) // 2] for p in pools), strict=True))
    return case._replace(k_pool=pools[0], v_pool=pools[1], arguments=case.arguments | layers)


def assert_same_cache(have: Tensor, want: Tensor) -> None:
    """The same scales, but for the last bits, which Triton's interpreter cuts off of bfloat16; so values
    differ by one step at most."""
    torch.testing.assert_close(scales_of(have), scales_of(want), rtol=2**-6, atol=0, equal_nan=True)
    have, scales, want = (
        read_heads(have, ..., torch.float32),
        scales_of(want).float()[..., None],
        read_heads(want, ..., torch.float32),
    )
    assert torch.equal(have.isnan(), want.isnan())
    step = torch.maximum(scales * 1.1, want.abs() / 6)
    assert ((have - want).abs() <= step)[want.isfinite()].all()


CASES = {
    "a key for each query": {"context_lens": [9, NOBODY, 0, 66, 4], "D": 20},
    "in float16": {"context_lens": [130, 31], "D": 64, "H": 1, "block_size": 64, "dtype": torch.float16},
    "in bfloat16": {"context_lens": [9, 66], "D": 16, "dtype": torch.bfloat16},
    "groups of 3": {"context_lens": [9, NOBODY, 0, 66, 4], "group": 3, "D": 20},
    "groups of 2 in float16": {"context_lens": [70, 5], "group": 2, "D": 16, "dtype": torch.float16},
    "groups of 3 in bfloat16": {"context_lens": [9, 66], "group": 3, "D": 20, "dtype": torch.bfloat16},
}
FAR = {torch.float32: 0.02, torch.float16: 0.02, torch.bfloat16: 0.06}  # of results about 1 in size


@pytest.mark.slow
@needs_triton
@kept_in
@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_the_kernel_attends_and_stores_as_its_plain_twin_does(kept: torch.dtype, sizes: dict):
    """And both are near what 16 or 32 bits give, and see the token itself as later ones will."""
    outs, cases = [], [in_eight_bits(make_case(**sizes), kept) for _ in range(2)]
    for attention, case in zip((in_shares, paged_attention_append_plain), cases, strict=True):
        outs.append(attention(**case.arguments).float())
    exact = paged_attention_append_plain(**make_case(**sizes).arguments).float()
    far = FAR[cases[0].arguments["query"].dtype] * (1 if kept == torch.uint8 else 4)
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=far)
    torch.testing.assert_close(outs[1], exact, rtol=0, atol=2 * far)
    assert (outs[1] - exact).abs().max() > 0  # else nothing was kept in 8 bits
    for name in ("k_pool", "v_pool"):
        assert_same_cache(getattr(cases[0], name), getattr(cases[1], name))
    lone = [b for b, n in enumerate(cases[1].context_lens) if n <= 0]
    seen = as_stored(cases[1].arguments["value_new"], cases[1].k_pool).float()[lone]
    torch.testing.assert_close(
        outs[1][lone], seen.repeat_interleave(sizes.get("group", 1), 1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
@needs_triton
@dtypes
@kept_in
@pytest.mark.parametrize("group", [1, 3])
def test_prompts_are_stored_and_attended_as_by_the_plain_twin(
    kept: torch.dtype, group: int, dtype: torch.dtype
):
    D, transform = 16, make_transform(16, True, dtype, KERNEL_DEVICE)
    outs, pools = [], []
    for append, attention in (
        (kv_append_packed_triton, packed_attention_triton),
        (kv_append_packed_plain, packed_attention_plain),
    ):
        case = make_packed([18, 1, 3], [5, 30, 0], pads=2, D=D, H=1, block_size=16, dtype=dtype, group=group)
        pools.append([eight_bit_pool(pool, kept) for pool in (case.k_pool, case.v_pool)])
        caches = [pool[LAYER] for pool in pools[-1]]
        append(*caches, case.key, case.value, case.rows, transform)
        outs.append(attention(case.query, *caches, case.rows, transform).float())
    for have, want in zip(*pools, strict=True):
        assert_same_cache(have, want)
    far = FAR[dtype] * (1 if kept == torch.uint8 else 4)
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=far)


def test_a_kernel_that_knows_no_scales_refuses_an_8_bit_cache():
    case = in_eight_bits(make_case([3]), torch.uint8)
    with pytest.raises(ValueError, match=r"k_cache_layer is torch.uint8, expected torch.float32"):
        paged_attention_append_triton(**case.arguments)
    a = case.arguments
    with pytest.raises(ValueError, match=r"k_cache_layer is torch.uint8, expected torch.float32"):
        paged_attention_triton(
            *(a["query"], a["key_new"], a["value_new"], a["k_cache_layer"], a["v_cache_layer"]),
            *(a["block_table"][:1], a["context_lens"][:1], 3),
        )


@needs_triton
def test_heads_that_are_no_words_of_four_values_are_refused_by_the_kernel():
    with pytest.raises(ValueError, match=r"^query has heads of 6 values"):
        in_shares(**in_eight_bits(make_case([3], D=6), torch.uint8).arguments)


def test_an_8_bit_cache_without_room_for_scales_is_refused():
    case = make_case([3])
    bare = {name: case.arguments[name].to(torch.uint8) for name in ("k_cache_layer", "v_cache_layer")}
    with pytest.raises(ValueError, match=r"scales lie behind a head's values"):
        paged_attention_append_plain(**(case.arguments | bare))
