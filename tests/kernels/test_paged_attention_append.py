"""Attention that stores as it goes: plain, in one kernel, split and in shares, beside dense attention."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import (
    KERNELS,
    MOST_SPLITS,
    NOBODY,
    PLAIN,
    TOLERANCE,
    TRITON,
    assert_attends_and_stores,
    assert_far_places_are_found,
    each_form,
    make_case,
    permuted,
    pools_after,
    split_in,
    workspace_for,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused, assert_refused
from triton_marks import KERNEL_DEVICE, needs_triton

from labkit.kernels import SplitWorkspace, checks, paged_attention_append_plain

pytestmark = pytest.mark.slow

LAYER = 1  # of the three that a pool has here
kernels = pytest.mark.parametrize("attention", TRITON)

# --- every form ------------------------------------------------------------------------------------


ORDERS = [(0, 1, 2, 3, 4), (2, 3, 1, 0, 4)]  # of the pool's dimensions in memory; D is last

BOXED = {"D": 16, "block_size": 64, "dtype": torch.float16}  # where pieces come in boxes

random_sizes = st.fixed_dictionaries(
    {
        "context_lens": st.lists(
            st.integers(NOBODY, 40) | st.sampled_from([63, 64, 65]), min_size=1, max_size=3
        ),
        "H": st.integers(1, 2),
        "group": st.integers(1, 5),
        "D": st.integers(1, 40) | st.sampled_from([64, 80]),
        "block_size": st.sampled_from([1, 3, 4, 6, 16, 64]),
        "spare_slots": st.sampled_from([0, 4, 40]),
        "dtype": st.sampled_from(list(TOLERANCE)),
        "num_blocks": st.sampled_from([None, 650]),  # the far end of a large pool
    }
)


@each_form
@given(random_sizes, st.sampled_from(ORDERS), st.booleans())
@example({"context_lens": [3, 4, 5, 8, 0, 1]}, ORDERS[0], False)  # at, before and past a boundary
@example({"context_lens": [6, NOBODY, 3, NOBODY, NOBODY, 0]}, ORDERS[1], True)
@example({"context_lens": [NOBODY, NOBODY]}, ORDERS[0], True)
@example({"context_lens": [130, 1, 64], "block_size": 16, "H": 1}, ORDERS[0], False)
@example({"context_lens": [3, 5, 300, 1], "block_size": 16, "H": 1, "D": 80}, ORDERS[0], False)
@example({"context_lens": [1023], "block_size": 64, "H": 1}, ORDERS[0], False)  # as long as there are
@example({"context_lens": [200, 1, 128, 0], **BOXED}, ORDERS[0], True)
@example({"context_lens": [9, 200, NOBODY, 64], "group": 2, "H": 17, **BOXED}, ORDERS[0], True)
@example({"context_lens": [700, 0], "H": 1}, ORDERS[0], False)  # more than a row's shares have at their least
@example({"context_lens": [9, 66, NOBODY], "group": 3, "D": 20, "dtype": torch.float16}, ORDERS[0], False)
@example({"context_lens": [9, 66, 0], "group": 3, "D": 20, "dtype": torch.bfloat16}, ORDERS[0], False)
@example(  # more tokens than a wide program reads at a time
    {"context_lens": [9, 600, NOBODY, 256], "group": 2, "H": 1, "dtype": torch.float16}, ORDERS[1], True
)
@example({"context_lens": [5, 40], "group": 17, "H": 1}, ORDERS[0], False)
@settings(max_examples=10)
def test_it_is_dense_attention_and_each_token_is_in_its_slot(
    attention: Callable, sizes: dict, order: tuple[int, ...], is_contiguous: bool
):
    """Whatever the sizes, and each argument laid out in its own way."""
    case = make_case(**sizes)
    k_pool, v_pool = (permuted(pool, order) for pool in (case.k_pool, case.v_pool))
    views = {"k_cache_layer": k_pool[LAYER], "v_cache_layer": v_pool[LAYER]}
    if is_contiguous:
        table = case.arguments["block_table"]
        views |= {
            "query": permuted(case.arguments["query"], (1, 0, 2)),
            "key_new": case.arguments["key_new"].contiguous(),
            "block_table": torch.cat([table] * 2, dim=1)[:, : table.shape[1]],
            # Where the host does not know it, all that a table has room for is enough.
            "max_context_len": table.shape[1] * case.k_pool.shape[3],
        }
    moved = case._replace(arguments=case.arguments | views, k_pool=k_pool, v_pool=v_pool)
    assert_attends_and_stores(attention, moved)


@pytest.mark.filterwarnings("ignore:All-NaN slice", "ignore:invalid value")  # numpy, in the interpreter
@each_form
@pytest.mark.parametrize(("name", "broken"), [("query", 1), ("key_new", 2), ("value_new", 1)])
def test_a_row_whose_numbers_are_nan_spoils_no_other(attention: Callable, name: str, broken: int):
    """A request's, or one of a row that pads."""
    whole, spoiled = (make_case([5, 9, NOBODY, 2], H=1) for _ in range(2))
    expected = attention(**whole.arguments)
    new = spoiled.arguments[name].clone()
    new[broken] = torch.nan
    spoiled = spoiled._replace(arguments=spoiled.arguments | {name: new})
    expected_pools = pools_after(spoiled)
    out = attention(**spoiled.arguments)
    others = [b for b in range(4) if b != broken]
    assert torch.equal(out[others], expected[others])
    assert out[broken].isnan().all()
    assert torch.equal(spoiled.k_pool.isnan(), expected_pools[0].view(torch.float32).isnan())
    assert torch.equal(spoiled.v_pool.isnan(), expected_pools[1].view(torch.float32).isnan())


@each_form
def test_scores_past_the_range_of_exp_do_not_overflow(attention: Callable):
    case = make_case([7, 130], D=16)
    case.arguments["query"].fill_(80.0)
    case.arguments["query"][1] = -80.0
    assert_attends_and_stores(attention, case)


@kernels
def test_of_a_table_no_block_is_read_past_the_new_tokens(attention: Callable):
    """Those named there do not exist. (The plain one gathers whole rows; DeviceSlots has zeros there.)"""
    case = make_case([5, 0, NOBODY, 11], block_size=4)
    table = case.arguments["block_table"]
    for b, n in enumerate(case.context_lens):
        table[case.arguments["slot_mapping"][b], n // 4 + 1 if n != NOBODY else 0 :] = 2**30
    assert_attends_and_stores(attention, case)


# --- places past 2^31 ------------------------------------------------------------------------------


@each_form
def test_places_more_than_2_to_the_31_numbers_into_the_pool_are_found(attention: Callable):
    assert_far_places_are_found(attention, KERNEL_DEVICE)


# --- what the wrappers refuse ----------------------------------------------------------------------


@pytest.mark.parametrize("attention", [PLAIN, *TRITON[:2]])  # a plan is made for the right arguments alone
def test_what_does_not_fit_is_refused_by_name(attention: Callable):
    arguments = make_case([7, 5, NOBODY]).arguments
    if attention is KERNELS["in 3"]:
        attention = split_in(3, workspace_for(arguments))  # made for the right arguments
    is_plain = attention is paged_attention_append_plain
    assert_each_wrong_tensor_is_refused(attention, arguments, () if is_plain else ("block_table width",))
    turned = permuted(arguments["v_cache_layer"], (0, 2, 1, 3))
    with pytest.raises(ValueError, match=r"^v_cache_layer has strides .*, k_cache_layer"):
        attention(**arguments | {"v_cache_layer": turned})


@each_form
@pytest.mark.parametrize("bad", [-1, 6])
def test_in_debug_mode_a_slot_out_of_range_is_refused_by_name(
    attention: Callable, bad: int, monkeypatch: pytest.MonkeyPatch
):
    case = make_case([7, 5, NOBODY])
    mapping = case.arguments["slot_mapping"].clone()
    mapping[1] = bad
    monkeypatch.setattr(checks, "DEBUG", True)
    message = "slot_mapping has values from -?[0-9] to [0-9], outside of 0 to 5$"
    assert_refused(attention, case, {"slot_mapping": mapping}, message)
    assert_attends_and_stores(attention, case)


@needs_triton
@pytest.mark.parametrize("splits", [-1, 0, MOST_SPLITS + 1])
def test_a_number_of_splits_that_cannot_be_is_refused(splits: int):
    message = f"splits is {splits}, expected 1 to {MOST_SPLITS}$"
    assert_refused(split_in(splits), make_case([7, 5]), {}, message)


@needs_triton
def test_a_workspace_that_is_too_small_is_refused():
    workspace = SplitWorkspace(2, 2, 8, torch.device(KERNEL_DEVICE))
    assert_refused(split_in(2, workspace), make_case([7, 5, NOBODY]), {}, "workspace ")
    assert not workspace.arrived.any()
