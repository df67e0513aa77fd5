"""Paged attention, plain and in Triton, against dense attention in float64.

Every slot of the pool that holds no token is NaN, so whatever reads one is found out.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused
from torch import Tensor

from labkit.kernels import paged_attention_plain, paged_attention_triton, triton_status
from labkit.model.decoder_weights import split_heads

# Kernels run in the interpreter on CPU tensors, or compiled on the GPU's.
KERNEL_DEVICE = "cuda" if triton_status().mode == "native" else "cpu"
# Half precision: one unit in the last place of the result, because the interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
BOTH = [
    pytest.param(paged_attention_plain, id="plain"),
    pytest.param(paged_attention_triton, id="triton", marks=needs_triton),
]


class Case(NamedTuple):
    """The arguments of one call, by name, and each request's own keys and values, [T, G, D] in one piece."""

    arguments: dict[str, Tensor | int]
    keys: list[Tensor]
    values: list[Tensor]


def make_case(
    context_lens: list[int],
    H: int = 2,
    D: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    num_blocks: int | None = None,
    group: int = 1,
) -> Case:
    """Random requests whose blocks lie in any order at the far end of a pool that has at least one more.

    H: heads of keys and values, each with `group` heads of queries.
    """
    generator = torch.Generator(device).manual_seed(0)
    B = len(context_lens)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    needed = [-(-n // block_size) for n in context_lens]
    N = num_blocks or sum(needed) + 1
    order = N - 1 - torch.randperm(sum(needed), generator=generator, device=device)
    blocks_of = order.int().split(needed)
    block_table = torch.zeros(B, max(needed) + 1, dtype=torch.int32, device=device)
    k_cache, v_cache = (
        torch.full((N, H, block_size, D), torch.nan, dtype=dtype, device=device) for _ in range(2)
    )
    keys, values = ([randn(n, H, D) for n in context_lens] for _ in range(2))
    for b, blocks in enumerate(blocks_of):
        block_table[b, : len(blocks)] = blocks
        t = torch.arange(context_lens[b], device=device)
        block, slot = blocks.long()[t // block_size], t % block_size
        k_cache[block, :, slot] = keys[b]
        v_cache[block, :, slot] = values[b]
    # As the model makes them: views of one tensor.
    query, key_new, value_new = split_heads(randn(B, (group + 2) * H * D), group * H, H)
    arguments = {
        "query": query,
        "key_new": key_new,
        "value_new": value_new,
        "k_cache_layer": k_cache,
        "v_cache_layer": v_cache,
        "block_table": block_table,
        "context_lens": torch.tensor(context_lens, dtype=torch.int32, device=device),
        "max_context_len": max(context_lens),
    }
    return Case(arguments, keys, values)


def dense_attention(case: Case) -> Tensor:
    """The definition, a request at a time, in float64: [B, H, D]."""
    rows = []
    for b, query in enumerate(case.arguments["query"].double()):  # [H, D]
        keys = torch.cat([case.keys[b], case.arguments["key_new"][b : b + 1]]).double()  # [T + 1, G, D]
        values = torch.cat([case.values[b], case.arguments["value_new"][b : b + 1]]).double()
        group = len(query) // keys.shape[1]
        keys, values = (
            torch.stack([each[:, h // group] for h in range(len(query))], 1) for each in (keys, values)
        )
        scores = torch.einsum("hd,thd->ht", query, keys) / query.shape[-1] ** 0.5
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values))
    return torch.stack(rows)


def assert_is_dense_attention(attention: Callable[..., Tensor], case: Case) -> None:
    query = case.arguments["query"]
    out = attention(**case.arguments)
    assert (out.shape, out.dtype, out.device) == (query.shape, query.dtype, query.device)
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), dense_attention(case), rtol=tolerance, atol=tolerance)


random_sizes = st.fixed_dictionaries(
    {
        "context_lens": st.lists(
            st.integers(0, 40) | st.sampled_from([63, 64, 65, 130]), min_size=1, max_size=4
        ),
        "H": st.integers(1, 4),
        "D": st.integers(1, 40) | st.sampled_from([64, 80]),
        "group": st.integers(1, 5),
        "block_size": st.sampled_from([1, 3, 4, 6, 8, 64]),
        "dtype": st.sampled_from(list(TOLERANCE)),
        "num_blocks": st.sampled_from([None, 600]),  # the far end of a large pool
    }
)


@pytest.mark.slow
@settings(max_examples=25)
@given(random_sizes)
@example({"context_lens": [0, 0, 0]})
@example({"context_lens": [3, 4, 5, 8, 0, 1]})  # at, before and past a boundary
@pytest.mark.parametrize("attention", BOTH)
def test_it_is_dense_attention(attention: Callable, sizes: dict):
    device = KERNEL_DEVICE if attention is paged_attention_triton else "cpu"
    assert_is_dense_attention(attention, make_case(**sizes, device=device))


@pytest.mark.parametrize("attention", BOTH)
def test_it_writes_to_none_of_its_arguments(attention: Callable):
    first, second = (make_case([9, 4, 0], device=KERNEL_DEVICE).arguments for _ in range(2))
    attention(**first)
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("attention", BOTH)
def test_a_request_alone_or_in_a_batch_gets_the_same(attention: Callable):
    case = make_case([13, 0, 6, 4], device=KERNEL_DEVICE)
    together = attention(**case.arguments)
    for b in range(4):
        row = {
            name: argument[b : b + 1] if isinstance(argument, Tensor) and "cache" not in name else argument
            for name, argument in case.arguments.items()
        }
        alone = attention(**row | {"max_context_len": int(row["context_lens"])})
        torch.testing.assert_close(alone[0], together[b], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attention", BOTH)
def test_a_layer_of_a_larger_pool_and_columns_of_a_wider_table_may_be_views(attention: Callable):
    case = make_case([5, 9, 2], device=KERNEL_DEVICE)
    k_pool, v_pool = (
        torch.stack([torch.full_like(case.arguments[name], torch.nan), case.arguments[name]])
        for name in ("k_cache_layer", "v_cache_layer")
    )
    table = case.arguments["block_table"]
    wide = torch.full((3, 2 * table.shape[1]), 10**6, dtype=torch.int32, device=table.device)
    wide[:, : table.shape[1]] = table
    views = {
        "k_cache_layer": k_pool[1],
        "v_cache_layer": v_pool[1],
        "block_table": wide[:, : table.shape[1]],
    }
    assert_is_dense_attention(attention, case._replace(arguments=case.arguments | views))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy, in the interpreter
@pytest.mark.parametrize("attention", BOTH)
@pytest.mark.parametrize("name", ["query", "key_new", "value_new"])
def test_a_request_whose_numbers_are_nan_spoils_no_other(attention: Callable, name: str):
    case = make_case([5, 9, 2], device=KERNEL_DEVICE)
    expected = attention(**case.arguments)
    spoiled = case.arguments[name].clone()
    spoiled[1] = torch.nan
    out = attention(**case.arguments | {name: spoiled})
    assert torch.equal(out[[0, 2]], expected[[0, 2]])
    assert out[1].isnan().all()


@pytest.mark.parametrize("attention", BOTH)
def test_scores_past_the_range_of_exp_do_not_overflow(attention: Callable):
    case = make_case([7, 12], D=16, device=KERNEL_DEVICE)
    case.arguments["query"].fill_(80.0)
    case.arguments["query"][1] = -80.0
    assert_is_dense_attention(attention, case)


@pytest.mark.parametrize("attention", BOTH)
def test_blocks_more_than_2_to_the_31_numbers_into_the_pool_are_read(attention: Callable):
    """Trap 11. The far block begins at number 2**32, which an index of 32 bits takes for 0. Memory is only
    reserved: of 8.6 GB a few pages are touched."""
    H, D, block_size, far = 2, 64, 64, 2**18
    try:
        pool = torch.empty(far + 2, 2, H, block_size, D, dtype=torch.float16, device=KERNEL_DEVICE)
    except RuntimeError as error:  # out of memory on a GPU is one, too
        pytest.skip(f"8.6 GB could not be reserved: {error}")
    assert pool.stride(0) * far == 2**32
    near = make_case([70, 20], H, D, block_size, torch.float16, KERNEL_DEVICE)
    table = near.arguments["block_table"]
    assert table.max() == 3 and table.shape == (2, 3)  # four blocks; the first holds nothing
    pool[:2], pool[far:] = torch.nan, torch.nan
    moved = torch.tensor([0, far, 1, far + 1], device=KERNEL_DEVICE)
    k_pool, v_pool = pool.unbind(1)
    k_pool[moved], v_pool[moved] = near.arguments["k_cache_layer"], near.arguments["v_cache_layer"]
    layers = {"k_cache_layer": k_pool, "v_cache_layer": v_pool, "block_table": moved[table.long()].int()}
    assert_is_dense_attention(attention, near._replace(arguments=near.arguments | layers))


# --- what the wrappers refuse ----------------------------------------------------------------------


@pytest.mark.parametrize("attention", BOTH)
def test_what_does_not_fit_is_refused_by_name(attention: Callable):
    arguments = make_case([7, 5], device=KERNEL_DEVICE).arguments
    assert_each_wrong_tensor_is_refused(attention, arguments, ("block_table width",))
    turned = arguments["v_cache_layer"].transpose(1, 2).contiguous().transpose(1, 2)
    narrow = arguments["block_table"][:, :1]
    for name, wrong, message in (
        ("v_cache_layer", turned, "v_cache_layer has strides .*, k_cache_layer"),
        (
            "query",
            arguments["query"][:, [0, 1, 1]],
            "key_new has 2 heads, of which the 3 of query are no multiple",
        ),
        ("block_table", narrow, "max_context_len is 7, but block_table .* 4"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            attention(**arguments | {name: wrong})


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@dtypes
@pytest.mark.parametrize("attention", BOTH)
@pytest.mark.parametrize("D, block_size", [(64, 64), (64, 16), (80, 6), (128, 64)])
def test_on_a_gpu_it_is_dense_attention_at_full_size(
    attention: Callable, D: int, block_size: int, dtype: torch.dtype
):
    lengths = torch.randint(0, 1024, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    case = make_case([0, 1023, 64, *lengths], H=12, D=D, block_size=block_size, dtype=dtype, device="cuda")
    assert_is_dense_attention(attention, case)


@pytest.mark.cuda
@pytest.mark.parametrize("attention", BOTH)
def test_on_a_gpu_a_pool_of_more_than_2_to_the_31_numbers_is_read_at_its_far_end(attention: Callable):
    H, D, block_size = 2, 64, 64
    num_blocks = 2**31 // (H * D * block_size) + 100
    case = make_case([700, 64, 1023, 0, 3], H, D, block_size, torch.float16, "cuda", num_blocks)
    table = case.arguments["block_table"].long()
    assert (table * case.arguments["k_cache_layer"].stride(0)).max() >= 2**31
    assert_is_dense_attention(attention, case)
