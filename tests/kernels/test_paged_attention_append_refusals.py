"""What the wrappers of attention that stores as it goes refuse, by the argument's name."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import (
    KERNELS,
    MOST_SPLITS,
    NOBODY,
    PLAIN,
    TRITON,
    assert_attends_and_stores,
    each_form,
    make_case,
    permuted,
    split_in,
    workspace_for,
)
from refusals import assert_each_wrong_tensor_is_refused, assert_refused
from triton_marks import KERNEL_DEVICE, needs_triton

from labkit.kernels import SplitWorkspace, checks, paged_attention_append_plain

pytestmark = pytest.mark.slow


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
@pytest.mark.parametrize("batch_size, num_heads", [(2, 2), (5, 1)])
def test_a_workspace_that_is_too_small_is_refused(batch_size: int, num_heads: int):
    workspace = SplitWorkspace(batch_size, num_heads, 8, torch.device(KERNEL_DEVICE))
    assert_refused(split_in(2, workspace), make_case([7, 5, NOBODY]), {}, "workspace ")
    assert not workspace.arrived.any()
