"""Prompts that lie behind each other: stored and attended as if each were alone, in both forms."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import permuted
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import assert_attends_rows, assert_stores_rows, dense_prompts, make_packed
from refusals import assert_each_wrong_tensor_is_refused
from triton_marks import needs_triton

from labkit.kernels import (
    checks,
    kv_append_packed_plain,
    kv_append_packed_triton,
    packed_attention_plain,
    packed_attention_triton,
)
from labkit.kernels.packed_attention import PackedTile, packed_tile

pytestmark = pytest.mark.slow

PLAIN = pytest.param(kv_append_packed_plain, packed_attention_plain, id="plain")
TRITON = pytest.param(kv_append_packed_triton, packed_attention_triton, id="triton", marks=needs_triton)
each_form = pytest.mark.parametrize("append, attention", [PLAIN, TRITON])

CASES = {
    "one prompt": {"num_rows": [5]},
    "pads behind": {"num_rows": [3, 4], "pads": 9},
    "nothing but pads": {"num_rows": [0, 0], "num_before": [3, 0], "pads": 4},
    "prompts without rows": {"num_rows": [0, 3, 0, 0, 2, 0], "num_before": [1, 0, 4, 0, 2, 9], "pads": 1},
    "earlier chunks that end inside a block": {"num_rows": [7, 2, 5], "num_before": [3, 4, 9]},
    "many prompts of one token": {"num_rows": [1] * 21, "num_before": [0, 1, 7] * 7, "H": 1},
    "more rows than a tile's": {"num_rows": [33, 18], "num_before": [0, 13], "block_size": 16, "H": 1},
    "more tokens than a piece's": {"num_rows": [3, 4], "num_before": [126, 60], "block_size": 64, "H": 1},
    "heads of 20": {"num_rows": [6, 3], "num_before": [2, 11], "D": 20},
    "heads of 80": {"num_rows": [6, 3], "num_before": [2, 11], "D": 80, "H": 1},
    "float16": {"num_rows": [18, 1], "num_before": [5, 30], "D": 64, "H": 1, "dtype": torch.float16},
    "bfloat16": {"num_rows": [18, 1], "num_before": [5, 30], "D": 64, "H": 1, "dtype": torch.bfloat16},
}


@each_form
@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_each_row_is_stored_and_attends_as_if_its_prompt_were_alone(
    append: Callable, attention: Callable, sizes: dict
):
    case = make_packed(**sizes)
    assert_stores_rows(append, case)
    assert_attends_rows(attention, case, dense_prompts(case))


@needs_triton
@pytest.mark.parametrize("tile", [PackedTile(16, 16, 4, 1), PackedTile(64, 64, 4, 3)])
def test_with_any_tile(tile: PackedTile):
    case = make_packed([40, 3], [6, 50], pads=20, H=1, block_size=16)
    kv_append_packed_plain(*case.caches, case.key, case.value, case.rows)

    def attention(*arguments: torch.Tensor) -> torch.Tensor:
        return packed_attention_triton(*arguments, tile=tile)

    assert_attends_rows(attention, case, dense_prompts(case))


random_prompts = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=5)


@each_form
@given(random_prompts, st.integers(0, 3), st.sampled_from([1, 3, 4, 16]), st.integers(1, 20))
@settings(max_examples=5)
def test_at_any_size(
    append: Callable, attention: Callable, prompts: list[tuple[int, int]], pads: int, block_size: int, D: int
):
    num_rows, num_before = map(list, zip(*prompts, strict=True))
    case = make_packed(num_rows, num_before, pads + (sum(num_rows) == 0), D=D, block_size=block_size, H=1)
    assert_stores_rows(append, case)
    assert_attends_rows(attention, case, dense_prompts(case))


@each_form
def test_each_prompts_last_row_by_itself_attends_as_it_does_with_the_others(
    append: Callable, attention: Callable
):
    case = make_packed([5, 0, 1, 7], [2, 3, 0, 9], pads=2, H=1)
    assert_stores_rows(append, case)
    case.rows.block_tables[1] = 10**9  # of a prompt without rows, whose table need not be there
    last = [4, 5, 12]  # of the others
    out = attention(case.query[[4, 4, 5, 12]], *case.caches, case.rows.last)
    expected = dense_prompts(case)[last]
    torch.testing.assert_close(out[[0, 2, 3]].double(), expected, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 2048), st.integers(1, 256), st.sampled_from([torch.float16, torch.float32]))
def test_a_tile_is_one_that_a_product_takes(num_rows: int, head_dim: int, dtype: torch.dtype):
    tile = packed_tile(num_rows, head_dim, dtype, torch.device("cpu"))
    assert all(side >= 16 and side & (side - 1) == 0 for side in (tile.rows, tile.tokens))


@pytest.mark.parametrize(
    ("capability", "num_rows", "rows"),
    [((9, 0), 1024, 64), ((9, 0), 1023, 32), ((8, 0), 1024, 32), ((10, 0), 1024, 32)],
)
def test_with_wide_heads_and_many_rows_hopper_has_its_products_64_rows(
    monkeypatch, capability, num_rows, rows
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert packed_tile(num_rows, 128, torch.bfloat16, torch.device("cuda")).rows == rows


@each_form
def test_what_does_not_fit_is_refused_by_name(append: Callable, attention: Callable):
    case = make_packed([4, 2], [3, 1])
    caches = dict(zip(("k_cache_layer", "v_cache_layer"), case.caches, strict=True))
    for call, arguments in (
        (append, caches | {"key": case.key, "value": case.value, "rows": case.rows}),
        (attention, {"query": case.query} | caches | {"rows": case.rows}),
    ):
        free = ("query rows", "rows.block_tables width")
        assert_each_wrong_tensor_is_refused(call, arguments, free)
        with pytest.raises(ValueError, match=r"^v_cache_layer has strides .*, k_cache_layer"):
            call(**arguments | {"v_cache_layer": permuted(arguments["v_cache_layer"], (0, 2, 1, 3))})


@each_form
@pytest.mark.parametrize(
    "change, message",
    [
        ({"starts": [0, 4, 9]}, "rows.starts has values from 0 to 9, outside of 0 to 6"),
        ({"starts": [0, 4, 2]}, r"rows.starts is \[0, 4, 2\], expected no number below"),
        ({"context_lens": [-1, 3]}, "rows.context_lens has values from -1 to 3"),
    ],
)
def test_in_debug_mode_rows_that_cannot_be_are_refused(
    append: Callable, attention: Callable, change: dict, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checks, "DEBUG", True)
    case = make_packed([4, 2], [3, 1])
    (name, numbers), *_ = change.items()
    rows = case.rows._replace(**{name: torch.tensor(numbers, dtype=torch.int32, device=case.query.device)})
    with pytest.raises(ValueError, match=f"^{message}"):
        append(*case.caches, case.key, case.value, rows)
    with pytest.raises(ValueError, match=f"^{message}"):
        attention(case.query, *case.caches, rows)
