"""What the wrappers of attention that stores as it goes refuse, by the argument's name."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import (
    KERNEL_DEVICE,
    KERNELS,
    MOST_SPLITS,
    NOBODY,
    Case,
    assert_attends_and_stores,
    bits,
    each_form,
    make_case,
    needs_triton,
    permuted,
    split_in,
    workspace_for,
)
from torch import Tensor

from labkit.kernels import (
    SplitWorkspace,
    checks,
)

pytestmark = pytest.mark.slow


def strided(tensor: Tensor) -> Tensor:
    """The same values, the last dimension two apart."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


REFUSED = {
    "a query of another rank": ("query", lambda q: q[0], r"query has shape \[2, 8\], expected \[B, H, D\]"),
    "keys of another batch": ("key_new", lambda k: k[1:], r"key_new has shape \[2, .* expected \[3, 2, 8\]"),
    "values of fewer heads": ("value_new", lambda v: v[:, 1:], r"value_new has shape \[3, 1, 8\]"),
    "a cache of another head size": (
        "k_cache_layer",
        lambda k: k[..., 1:],
        r"k_cache_layer has shape .*, 8\]$",
    ),
    "a cache of other heads": ("k_cache_layer", lambda k: k[:, 1:], r"k_cache_layer has shape"),
    "a whole pool": (
        "k_cache_layer",
        lambda k: k[None],
        r"k_cache_layer has shape \[1, .* \[N, 2, block_size",
    ),
    "values of fewer blocks": ("v_cache_layer", lambda v: v[1:], r"v_cache_layer has shape"),
    "values of smaller blocks": ("v_cache_layer", lambda v: v[:, :, 1:], r"v_cache_layer has shape"),
    "tables of all layers": ("block_table", lambda t: t[None], r"block_table has shape .* expected \[S, M\]"),
    "lengths of fewer slots": (
        "context_lens",
        lambda n: n[1:],
        r"context_lens has shape \[5\], expected \[6\]",
    ),
    "lengths of the requests": (
        "context_lens",
        lambda n: n[:3],
        r"context_lens has shape \[3\], expected \[6\]",
    ),
    "lengths by column": ("context_lens", lambda n: n[:, None], r"context_lens has shape \[6, 1\]"),
    "a mapping of another batch": ("slot_mapping", lambda s: s[1:], r"slot_mapping has shape \[2\].* \[3\]"),
    "a mapping by column": ("slot_mapping", lambda s: s[:, None], r"slot_mapping has shape \[3, 1\]"),
    "keys of another dtype": ("key_new", Tensor.half, r"key_new is torch.float16, expected torch.float32"),
    "a cache of another dtype": ("v_cache_layer", Tensor.half, r"v_cache_layer is torch.float16"),
    "a table in int64": ("block_table", Tensor.long, r"block_table is torch.int64, expected torch.int32"),
    "lengths in int64": ("context_lens", Tensor.long, r"context_lens is torch.int64, expected torch.int32"),
    "a mapping in int32": ("slot_mapping", Tensor.int, r"slot_mapping is torch.int32, expected torch.int64"),
    "values on another device": ("value_new", on_meta, r"value_new is on meta, expected"),
    "a cache on another device": ("k_cache_layer", on_meta, r"k_cache_layer is on meta"),
    "a table on another device": ("block_table", on_meta, r"block_table is on meta"),
    "lengths on another device": ("context_lens", on_meta, r"context_lens is on meta"),
    "a mapping on another device": ("slot_mapping", on_meta, r"slot_mapping is on meta"),
    "a query with gaps": ("query", strided, r"query has strides .*contiguous"),
    "a cache with gaps": ("k_cache_layer", strided, r"k_cache_layer has strides .*contiguous"),
    "a table with gaps": ("block_table", strided, r"block_table has strides .*contiguous"),
    "lengths with gaps": ("context_lens", strided, r"context_lens has strides .*contiguous"),
    "a mapping with gaps": ("slot_mapping", strided, r"slot_mapping has strides .*contiguous"),
    "caches laid out differently": (
        "v_cache_layer",
        lambda v: permuted(v, (0, 2, 1, 3)),
        r"v_cache_layer has strides .*, k_cache_layer",
    ),
}


def assert_refused(attention: Callable, case: Case, changes: dict, message: str) -> None:
    """With an error that begins so, and before anything is written."""
    before = [bits(pool).clone() for pool in (case.k_pool, case.v_pool)]
    with pytest.raises(ValueError, match=f"^{message}"):
        attention(**case.arguments | changes)
    assert torch.equal(bits(case.k_pool), before[0])
    assert torch.equal(bits(case.v_pool), before[1])


@each_form
@pytest.mark.parametrize("name, change, message", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(attention: Callable, name: str, change: Callable, message: str):
    case = make_case([7, 5, NOBODY])
    workspace = workspace_for(case.arguments)
    if attention is KERNELS["in 3"]:
        attention = split_in(3, workspace)  # made for the right arguments
    assert_refused(attention, case, {name: change(case.arguments[name])}, message)


@each_form
@pytest.mark.parametrize("bad", [-1, 6])
def test_in_debug_mode_a_slot_out_of_range_is_refused_by_name(
    attention: Callable, bad: int, monkeypatch: pytest.MonkeyPatch
):
    case = make_case([7, 5, NOBODY])
    mapping = case.arguments["slot_mapping"].clone()
    mapping[1] = bad
    monkeypatch.setattr(checks, "DEBUG", True)
    message = "slot_mapping has values from .*, outside of 0 to 5$"
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
