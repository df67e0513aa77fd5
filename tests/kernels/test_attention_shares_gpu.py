"""Attention in equal shares of tokens, on a GPU: at full size, without waiting, and in graphs."""

import pytest
import torch
from attention_append_cases import (
    NOBODY,
    TOLERANCE,
    assert_attends_and_stores,
    assert_same_plan,
    bits,
    dense_attention,
    in_shares,
    make_case,
    plan_for,
    with_rows,
    workspace_for,
)
from torch import Tensor
from triton_marks import assert_host_does_not_wait, captured, dtypes, needs_triton

from labkit.kernels import (
    SharePlan,
    SplitWorkspace,
    paged_attention_append_shares_triton,
    plan_shares_plain,
    plan_shares_triton,
)

pytestmark = [pytest.mark.slow, pytest.mark.cuda, needs_triton]

FULL = {"H": 12, "D": 64, "block_size": 64, "device": "cuda"}


def ragged(n: int) -> list[int]:
    """Many short ones and a few as long as there are; every seventh row pads."""
    lens = (torch.rand(n, generator=torch.Generator().manual_seed(n)) ** 4 * 1023).int().tolist()
    return [NOBODY if i % 7 == 6 else length for i, length in enumerate(lens)]


@dtypes
@pytest.mark.parametrize(
    "context_lens",
    [[0], [1], [1023], [NOBODY], [0, 1023], [100] * 31 + [900], ragged(64), ragged(96), ragged(200)],
    ids=lambda lens: f"{len(lens)} rows, last {lens[-1]}",
)
def test_at_full_size(context_lens: list[int], dtype: torch.dtype):
    assert_attends_and_stores(in_shares, make_case(context_lens, **FULL, dtype=dtype))


@pytest.mark.parametrize("n", [1, 5, 64, 87, 89, 300])
def test_the_plan_is_the_plain_one(n: int):
    for lens in (ragged(n), [512] * n, [100] * (n - 1) + [1023]):
        device_lens = torch.tensor([*lens, NOBODY], dtype=torch.int32, device="cuda")
        slots = torch.randperm(n, device="cuda")
        plan, plain = (SharePlan(n, 12, 64, torch.float16, torch.device("cuda")) for _ in range(2))
        plan_shares_triton(device_lens, slots, plan)
        plan_shares_plain(device_lens, slots, plain)
        assert_same_plan(plan, plain)


def test_the_host_does_not_wait():
    case = make_case([9, 64, NOBODY, 500], **FULL, dtype=torch.float16)
    arguments = {k: v for k, v in case.arguments.items() if k != "max_context_len"}
    plan = plan_for(arguments)
    workspace = workspace_for(arguments, len(plan.row_of))

    def launch() -> None:
        plan_shares_triton(arguments["context_lens"], arguments["slot_mapping"], plan)
        arguments["slot_mapping"] + 0  # launched in order
        paged_attention_append_shares_triton(**arguments, workspace=workspace, plan=plan)

    assert_host_does_not_wait(launch)


@dtypes
def test_a_graph_follows_the_lengths_that_lie_in_its_slots(dtype: torch.dtype):
    """Captured while all rows pad; replayed as requests come and go. The plan is made once, and two layers
    behind it attend, so that the second begins while the first ends."""
    real = make_case([130, 64, 0, 1000, 1023, 7, 500, 31], **FULL, dtype=dtype)
    arguments = {k: v for k, v in real.arguments.items() if k != "max_context_len"}
    arguments["slot_mapping"] = with_rows(real, [], 8).arguments["slot_mapping"]
    plan = SharePlan(20, 12, 64, dtype, torch.device("cuda"), block_size=64)
    workspace = SplitWorkspace(20, 12, 64, torch.device("cuda"), len(plan.row_of))

    def step() -> tuple[Tensor, ...]:
        plan_shares_triton(arguments["context_lens"], arguments["slot_mapping"], plan)
        arguments["slot_mapping"] + 0  # a kernel that is launched in order, as that of the embeddings
        return tuple(
            paged_attention_append_shares_triton(**arguments, workspace=workspace, plan=plan)
            for _ in range(2)
        )

    before = bits(real.k_pool).clone()
    graph, outs = captured(step)
    graph.replay()
    assert torch.equal(bits(real.k_pool), before)
    tolerance = TOLERANCE[dtype]
    for rows in ([0, 1, 2, 3, 4, 5, 6, 7], [2, 0], [3], [], [4, 5, 1, 7, 6]):
        case = with_rows(real, rows, 8)
        arguments["slot_mapping"].copy_(case.arguments["slot_mapping"])
        graph.replay()
        for out in outs:
            torch.testing.assert_close(out.double(), dense_attention(case), rtol=tolerance, atol=tolerance)
        assert not workspace.arrived.any()
