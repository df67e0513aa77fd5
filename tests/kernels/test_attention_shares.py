"""Attention that stores as it goes, in shares of about as many tokens each: the plan, and what follows it."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import (
    NOBODY,
    assert_attends_and_stores,
    assert_same_plan,
    bits,
    in_shares,
    make_case,
    plan_for,
    workspace_for,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triton_marks import KERNEL_DEVICE, needs_triton

from labkit.kernels import (
    SharePlan,
    SplitWorkspace,
    attention_shares,
    checks,
    paged_attention_append_shares_triton,
    plan_shares_plain,
    plan_shares_triton,
)
from labkit.kernels.attention_shares import MAX_SHARES

pytestmark = pytest.mark.slow

# --- the plan --------------------------------------------------------------------------------------


def planned(
    planner: Callable,
    context_lens: list[int],
    num_heads: int = 12,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    room: int = 0,
    group: int = 1,
) -> SharePlan:
    """The plan of rows of such lengths, in slots of any order; room: of more rows than there are."""
    device = torch.device(KERNEL_DEVICE if planner is plan_shares_triton else "cpu")
    B = len(context_lens)
    plan = SharePlan(B + room, num_heads, head_dim, dtype, device, group)
    for buffer in (plan.row_of, plan.slot_of, plan.first_of, plan.end_of):
        buffer.fill_(12345)  # what an earlier step has left
    slot_mapping = torch.randperm(B + 2, generator=torch.Generator().manual_seed(B))[:B].to(device)
    lens = torch.full((B + 2,), 777, dtype=torch.int32, device=device)
    lens[slot_mapping] = torch.tensor(context_lens, dtype=torch.int32, device=device)
    planner(lens, slot_mapping, plan)
    slots = slot_mapping.tolist()
    num_used = int((plan.row_of >= 0).sum())
    assert plan.slot_of[:num_used].tolist() == [slots[b] for b in plan.row_of[:num_used].tolist()]
    return plan


def shares_of(plan: SharePlan, num_rows: int) -> list[list[range]]:
    """The tokens of each share of each row."""
    shares: list[list[range]] = [[] for _ in range(num_rows)]
    columns = zip(plan.row_of.tolist(), plan.first_of.tolist(), plan.end_of.tolist(), strict=True)
    for w, (b, first, end) in enumerate(columns):
        if b < 0:
            continue
        assert w == plan.first_share[b] + len(shares[b])
        shares[b].append(range(first, end))
    return shares


def assert_is_a_plan(plan: SharePlan, context_lens: list[int]) -> None:
    """Every token of every row is in exactly one share, and the sizes are equal but for a row's last."""
    B = len(context_lens)
    num_used = int((plan.row_of >= 0).sum())
    assert num_used <= plan.limits(B)[1] <= len(plan.row_of)
    assert (plan.row_of[num_used:] == -1).all()
    shares, piece = shares_of(plan, B), plan.reading(B).tokens
    assert plan.num_shares[:B].tolist() == [len(of_row) for of_row in shares]
    sizes = []
    for n, of_row in zip(context_lens, shares, strict=True):
        assert 1 <= len(of_row) <= MAX_SHARES
        assert [t for share in of_row for t in share] == list(range(n))
        if n > 0:
            assert all(len(share) > 0 for share in of_row)
            size = len(of_row[0])
            assert all(len(share) == size for share in of_row[:-1]) and len(of_row[-1]) <= size
            sizes += [size] if len(of_row) > 1 else []
            assert len(of_row) == 1 or size % piece == 0
            if len(of_row) > 1 and size > min(sizes):  # larger than others' only because it must be
                assert -(-n // (size - piece)) > MAX_SHARES


lengths = st.lists(st.integers(NOBODY, 1100), min_size=1, max_size=150)


@given(lengths, st.sampled_from([1, 2, 12, 25, 2000]), st.sampled_from([32, 64, 80]), st.integers(1, 3))
@example([512] * 128, 12, 64, 1)
@example([1] * 87 + [1023], 12, 64, 1)
@example([100] * 255 + [1023], 12, 64, 1)
@settings(max_examples=60)
def test_plain_plans_of_any_lengths(context_lens: list[int], num_heads: int, head_dim: int, group: int):
    plan = planned(plan_shares_plain, context_lens, num_heads, head_dim, group=group)
    assert_is_a_plan(plan, context_lens)
    assert plan.batch_size == len(context_lens)


@needs_triton
@given(lengths, st.sampled_from([1, 12, 2000]), st.integers(1, 3))
@example([NOBODY], 12, 1)
@example([100] * 255 + [1023], 12, 1)
@settings(max_examples=10)
def test_the_kernel_makes_the_plain_plan(context_lens: list[int], num_heads: int, group: int):
    plan, plain = (
        planned(each, context_lens, num_heads, room=3, group=group)
        for each in (plan_shares_triton, plan_shares_plain)
    )
    assert_same_plan(plan, plain)


def test_a_long_row_gets_many_shares_and_rows_of_one_length_as_many_each():
    ragged = planned(plan_shares_plain, [100] * 63 + [900])
    assert ragged.num_shares.tolist() == [1] * 63 + [9]
    assert planned(plan_shares_plain, [512] * 64).num_shares.tolist() == [2] * 64
    assert planned(plan_shares_plain, [512] * 8).num_shares.tolist() == [8] * 8
    assert planned(plan_shares_plain, [1023]).num_shares.tolist() == [MAX_SHARES]
    assert planned(plan_shares_plain, [NOBODY, 0, 20]).num_shares.tolist() == [1, 1, 1]


def test_wide_programs_have_shares_as_wide():
    """Of queries that share a key, in few rows; of 22 rows no longer."""
    few = planned(plan_shares_plain, [NOBODY, 256, 257, 1023], num_heads=3, group=3)
    assert few.num_shares.tolist() == [1, 1, 2, 4]
    assert few.first_of[:8].tolist() == [0, 0, 0, 256, 0, 256, 512, 768]
    assert few.end_of[:8].tolist() == [0, 256, 256, 257, 256, 512, 768, 1023]
    assert planned(plan_shares_plain, [256] * 22, num_heads=3, group=3).num_shares.tolist() == [8] * 22


def test_shares_are_larger_than_fair_where_they_would_be_too_many():
    """Of 21 rows of 25 pieces, with 88 shares at once, 6 pieces a share are fair, which makes 5 shares a row
    and 105 in all; with 8 pieces there are 84."""
    plan = planned(plan_shares_plain, [25 * 32] * 21)
    assert plan.limits(21) == (88, 88)
    assert plan.num_shares.tolist() == [4] * 21
    assert plan.end_of[0] == 8 * 32
    fair = planned(plan_shares_plain, [24 * 32] * 21)
    assert fair.num_shares.tolist() == [4] * 21
    assert fair.end_of[0] == 6 * 32


def test_shares_are_larger_than_fair_where_some_would_begin_when_others_have_ended():
    """Of rows of 10 and of 14 pieces, with 132 shares at once, 12 pieces are fair: two shares for each of the
    longer ones, 192 in all, of which the last 60 would wait. With 15 pieces a row has one."""
    assert planned(plan_shares_plain, [10 * 16, 14 * 16] * 64).num_shares.tolist() == [1] * 128


def test_shares_that_begin_late_are_taken_where_they_still_end_sooner():
    """Of rows of 20 and of 28 pieces, 23 in a share make 150, so 18 are late. The mean is 18 pieces, the last
    would end after 29, and shares of 28 are all at once. Of rows of 20 and of 31, shares of 24 end after 30,
    and the smallest size of which all are at once is 34."""
    assert planned(plan_shares_plain, [20 * 16] * 42 + [28 * 16] * 54).num_shares.tolist() == [1] * 96
    longer = planned(plan_shares_plain, [20 * 16] * 48 + [31 * 16] * 48)
    assert longer.limits(96) == (132, 162)
    assert longer.num_shares.tolist() == [1] * 48 + [2] * 48


def test_a_plan_is_refused_for_rows_or_slots_that_do_not_fit():
    plan = SharePlan(3, 2, 8, torch.float32, torch.device("cpu"))
    lens, slots = torch.zeros(5, dtype=torch.int32), torch.arange(3)
    for arguments, message in (
        ((lens.long(), slots), "context_lens is torch.int64, expected torch.int32"),
        ((lens, torch.arange(4)), "slot_mapping has 4 rows, expected 1 to 3"),
        ((lens, slots[:0]), "slot_mapping has 0 rows, expected 1 to 3"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            plan_shares_plain(*arguments, plan)
    assert plan.batch_size == 0


def test_in_debug_mode_a_slot_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "DEBUG", True)
    plan = SharePlan(3, 2, 8, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^slot_mapping has values from 0 to 9, outside of 0 to 4$"):
        plan_shares_plain(torch.zeros(5, dtype=torch.int32), torch.tensor([0, 9]), plan)


# --- attention by the plan: test_paged_attention_append.py has what all forms do ----------------------


@needs_triton
def test_more_rows_than_shares_at_once(monkeypatch: pytest.MonkeyPatch):
    """As on a GPU of two programs at once, or of three where a program reads half as many tokens."""
    monkeypatch.setattr(attention_shares, "NARROW", attention_shares.NARROW._replace(at_once=2))
    monkeypatch.setattr(attention_shares, "MANY_HEADS", 6)
    plan = SharePlan(6, 1, 8, torch.float32, torch.device("cpu"))
    assert [plan.limits(B) for B in (1, 5, 6)] == [(2, 2), (2, 6), (3, 7)]
    assert [plan.reading(B).tokens for B in (1, 5, 6)] == [32, 32, 16]
    assert_attends_and_stores(in_shares, make_case([40, 3, 0, 70, NOBODY, 33], H=1))
    assert_attends_and_stores(in_shares, make_case([40, 3, 70], H=1))


@needs_triton
@pytest.mark.parametrize("at_once, tokens", [(8, 64), (6, 32)])
def test_keys_in_boxes(monkeypatch: pytest.MonkeyPatch, at_once: int, tokens: int):
    """In large ones where each row and head has a program at once, else in small ones."""
    programs = attention_shares.NARROW._replace(at_once=at_once)
    monkeypatch.setattr(attention_shares, "NARROW", programs)
    monkeypatch.setattr(attention_shares, "MANY_HEADS", 6)
    monkeypatch.setattr(attention_shares, "LEAST_IN_BOXES", 6)
    case = make_case([200, NOBODY, 129], D=64, block_size=64, dtype=torch.float16)
    plan = plan_for(case.arguments)
    assert plan.reading(3) == (tokens, programs._replace(at_once=6), True) and not plan.reading(2).is_boxed
    assert_attends_and_stores(in_shares, case)


@needs_triton
def test_a_workspace_and_a_plan_serve_one_step_after_the_other():
    """Made for a large batch, as an engine does it; what one step leaves is nothing to the next."""
    device = torch.device(KERNEL_DEVICE)
    plan = SharePlan(4, 2, 8, torch.float32, device)
    workspace = SplitWorkspace(4, 2, 8, device, len(plan.row_of))

    def attention(max_context_len: int, **arguments: torch.Tensor) -> torch.Tensor:
        plan_shares_triton(arguments["context_lens"], arguments["slot_mapping"], plan)
        assert not workspace.arrived.any()  # launched in order behind the plan
        return paged_attention_append_shares_triton(**arguments, workspace=workspace, plan=plan)

    for lens in ([70, 3, 0, NOBODY], [9], [0]):
        assert_attends_and_stores(attention, make_case(lens))
    assert not workspace.arrived.any()


@needs_triton
def test_a_workspace_or_a_plan_of_something_else_is_refused():
    case = make_case([7, 5, NOBODY])
    arguments = {name: value for name, value in case.arguments.items() if name != "max_context_len"}
    device, before = torch.device(KERNEL_DEVICE), bits(case.k_pool).clone()
    plan = plan_for(arguments)
    workspace = workspace_for(arguments, len(plan.row_of))
    plan_shares_triton(arguments["context_lens"], arguments["slot_mapping"], plan)
    unmade = SharePlan(3, 2, 8, torch.float32, device)
    other_heads = SharePlan(3, 4, 8, torch.float32, device)
    other_heads.batch_size = 3
    for space, made, message in (
        (SplitWorkspace(2, 2, 8, device), plan, "workspace is for 2 rows, but there are 3"),
        (SplitWorkspace(3, 2, 8, device, 4), plan, "workspace is for 4 parts, but there may be "),
        (SplitWorkspace(3, 2, 16, device), plan, "workspace is for 2 heads of 16, expected 2 of 8"),
        (SplitWorkspace(3, 2, 8, torch.device("meta")), plan, "workspace is on meta"),
        (workspace, unmade, "plan was made for 0 rows of 2 heads, but there are 3 of 2"),
        (workspace, other_heads, "plan was made for 3 rows of 4 heads, but there are 3 of 2"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            paged_attention_append_shares_triton(**arguments, workspace=space, plan=made)
    with pytest.raises(ValueError, match=r"^key_new has shape"):
        arguments["key_new"] = arguments["key_new"][1:]
        paged_attention_append_shares_triton(**arguments, workspace=workspace, plan=plan)
    assert torch.equal(bits(case.k_pool), before) and not workspace.arrived.any()
