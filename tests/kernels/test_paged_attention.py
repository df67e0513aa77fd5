"""Paged attention, plain and in Triton, against dense attention in float64.

Every slot of the pool that holds no token is NaN, so whatever reads one is found out.
"""

from collections.abc import Callable
from typing import Any

import attention_append_cases as cases
import pytest
import torch
from attention_append_cases import TOLERANCE, Case, dense_attention, far_case, without_slots
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused, unchanged
from torch import Tensor
from triton_marks import KERNEL_DEVICE, devices, dtypes, twins

from labkit.kernels import paged_attention_plain, paged_attention_triton

BOTH = twins(paged_attention_plain, paged_attention_triton)


def make_case(context_lens: list[int], *sizes: int, **more: Any) -> Case:
    """Random requests whose blocks lie in any order at the far end of a pool that has one more, their table
    part of a wider one."""
    case = without_slots(cases.make_case(context_lens, *sizes, **more))
    table = case.arguments["block_table"]
    wide = torch.cat([table, torch.full_like(table, 10**6)], dim=1)
    return case._replace(arguments=case.arguments | {"block_table": wide[:, : table.shape[1]]})


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
    case = make_case(**sizes, device=device)
    with unchanged(case.arguments):
        assert_is_dense_attention(attention, case)


@pytest.mark.parametrize("attention", BOTH)
def test_scores_past_the_range_of_exp_do_not_overflow(attention: Callable):
    case = make_case([7, 12], D=16)
    case.arguments["query"].fill_(80.0)
    case.arguments["query"][1] = -80.0
    assert_is_dense_attention(attention, case)


@devices
@pytest.mark.parametrize("attention", BOTH)
def test_blocks_more_than_2_to_the_31_numbers_into_the_pool_are_read(attention: Callable, device: str):
    assert_is_dense_attention(attention, without_slots(far_case(device)))


# --- what the wrappers refuse ----------------------------------------------------------------------


@pytest.mark.parametrize("attention", BOTH)
def test_what_does_not_fit_is_refused_by_name(attention: Callable):
    arguments = make_case([7, 5]).arguments
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
