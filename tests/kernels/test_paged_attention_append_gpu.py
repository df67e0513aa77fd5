"""Attention that stores as it goes, on a GPU: at full size, without waiting, and in graphs."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import (
    MOST_SPLITS,
    NOBODY,
    assert_attends_and_stores,
    assert_far_places_are_found,
    bits,
    dense_attention,
    in_shares,
    make_case,
    split_in,
    with_rows,
    workspace_for,
)
from torch import Tensor
from triton_marks import assert_host_does_not_wait, captured, dtypes, needs_triton

from labkit.kernels import (
    paged_attention_append_plain,
    paged_attention_append_split_triton,
    paged_attention_append_triton,
)

pytestmark = pytest.mark.slow

FULL = {"H": 12, "D": 64, "block_size": 64}


def full_lengths(n: int) -> list[int]:
    """Random, up to the longest context that GPT-2 has room to append to; every fifth row pads."""
    lengths = torch.randint(0, 1024, (n,), generator=torch.Generator().manual_seed(0)).tolist()
    return [0, 1023, 64, 63, *(NOBODY if i % 5 == 4 else length for i, length in enumerate(lengths))]


GPU_FORMS = {
    "plain": paged_attention_append_plain,
    "triton": paged_attention_append_triton,
    **{f"in {n}": split_in(n) for n in (1, 2, 3, 5, 8, 16, MOST_SPLITS)},
    "in shares": in_shares,
}
gpu_forms = pytest.mark.parametrize(
    "attention",
    [
        pytest.param(attention, id=name, marks=() if name == "plain" else needs_triton)
        for name, attention in GPU_FORMS.items()
    ],
)
gpu_kernels = pytest.mark.parametrize(
    "attention",
    [pytest.param(GPU_FORMS[name], id=name, marks=needs_triton) for name in ("triton", "in 1", "in 5")],
)


@pytest.mark.cuda
@dtypes
@gpu_forms
def test_on_a_gpu_it_attends_and_stores_at_full_size(attention: Callable, dtype: torch.dtype):
    assert_attends_and_stores(attention, make_case(full_lengths(60), **FULL, dtype=dtype, device="cuda"))


@pytest.mark.cuda
@dtypes
@gpu_forms
@pytest.mark.parametrize("D, block_size", [(64, 16), (80, 6), (128, 64), (20, 1), (64, 4)])
def test_on_a_gpu_at_other_sizes_of_heads_and_blocks(
    attention: Callable, D: int, block_size: int, dtype: torch.dtype
):
    lengths = [0, 200, 64, NOBODY, 5, 130]
    assert_attends_and_stores(attention, make_case(lengths, 3, D, block_size, dtype, "cuda"))


@pytest.mark.cuda
@gpu_forms
@pytest.mark.parametrize("context_len", [NOBODY, 0, 1, 500, 1023])
def test_on_a_gpu_one_request_alone(attention: Callable, context_len: int):
    assert_attends_and_stores(attention, make_case([context_len], **FULL, dtype=torch.float16, device="cuda"))


@pytest.mark.cuda
@gpu_forms
def test_on_a_gpu_places_more_than_2_to_the_31_numbers_into_the_pool_are_found(attention: Callable):
    assert_far_places_are_found(attention, "cuda")


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("splits", [2, 5, 16, MOST_SPLITS])
def test_on_a_gpu_the_order_in_which_programs_arrive_changes_no_bit(splits: int):
    case = make_case(full_lengths(28), **FULL, dtype=torch.float16, device="cuda")
    attention = split_in(splits, workspace_for(case.arguments))
    first = attention(**case.arguments)
    for _ in range(50):
        assert torch.equal(attention(**case.arguments), first)


@pytest.mark.cuda
@gpu_kernels
def test_on_a_gpu_the_host_does_not_wait(attention: Callable):
    case = make_case([9, 64, NOBODY, 500], **FULL, dtype=torch.float16, device="cuda")
    workspace = workspace_for(case.arguments)

    def launch() -> None:
        if attention is paged_attention_append_triton:
            attention(**case.arguments)
            return
        tensors = {k: v for k, v in case.arguments.items() if k != "max_context_len"}
        paged_attention_append_split_triton(**tensors, workspace=workspace, splits=5)

    assert_host_does_not_wait(launch)


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("splits", [None, 1, 5, 16])
def test_on_a_gpu_a_graph_of_it_follows_what_lies_in_its_tensors(splits: int | None):
    """Captured while all rows pad; replayed as requests come, grow and go. None: the one kernel."""
    real = make_case([130, 64, 0, 1000], **FULL, device="cuda")
    arguments = {k: v for k, v in real.arguments.items() if k != "max_context_len"}
    arguments["slot_mapping"] = with_rows(real, [], 4).arguments["slot_mapping"]
    workspace = workspace_for(arguments)

    def step() -> Tensor:
        if splits is None:
            return paged_attention_append_triton(**arguments, max_context_len=0)
        return paged_attention_append_split_triton(**arguments, workspace=workspace, splits=splits)

    before = bits(real.k_pool).clone()
    graph, out = captured(step)
    graph.replay()
    assert torch.equal(out, arguments["value_new"])  # each row sees itself alone
    assert torch.equal(bits(real.k_pool), before)
    for rows in ([0, 1, 2, 3], [2, 0], [3], []):
        case = with_rows(real, rows, 4)
        arguments["slot_mapping"].copy_(case.arguments["slot_mapping"])
        graph.replay()
        torch.testing.assert_close(out.double(), dense_attention(case), rtol=1e-5, atol=1e-5)
        assert not workspace.arrived.any()
