"""Around the forward of a step that verifies drafts: its rows, what is accepted, and the slots behind it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused
from torch import Tensor
from triton_marks import needs_triton, on_cpu

from labkit.kernels import (
    accept_drafts_plain,
    accept_drafts_triton,
    advance_verified_plain,
    advance_verified_triton,
    verify_rows_plain,
    verify_rows_triton,
)
from labkit.kernels.verify_rows import NOT_MADE

S, WIDTH = 6, 24  # slots, of which the last is the padding slot, and tokens of a text
FORMS = {
    "plain": (verify_rows_plain, accept_drafts_plain, advance_verified_plain),
    "triton": (verify_rows_triton, accept_drafts_triton, advance_verified_triton),
}
each_form = pytest.mark.parametrize("form", ["plain", pytest.param("triton", marks=[needs_triton, on_cpu])])
# Of a request: how many drafts it has, tokens in the cache, and how many it may have there. Less than 0 in
# the cache: it has the padding slot.
REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-1, 9), st.integers(1, 12)), min_size=1, max_size=5
)


def slots_of(requests: list[tuple[int, int, int]], device: str = "cpu") -> dict[str, Tensor]:
    """Every request's slot, with drafts 10, 11, 12, then 20, 21, 22 and so on; its last token is 1, 2, ..."""
    slots = [b if length >= 0 else S - 1 for b, (_, length, _) in enumerate(requests)]
    lens = torch.full((S,), -1, dtype=torch.int32)
    for slot, (_, length, _) in zip(slots, requests, strict=True):
        lens[slot] = length
    drafts = [[10 * (b + 1) + j if j < n else -1 for j in range(3)] for b, (n, _, _) in enumerate(requests)]
    made = {
        "drafts": torch.tensor(drafts),
        "slot_mapping": torch.tensor(slots),
        "last_token_ids": torch.arange(1, S + 1),
        "context_lens": lens,
        "ends": torch.tensor([end for _, _, end in requests]),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def inputs_of(b: int, num_drafts: int, length: int, end: int) -> list[int]:
    """The tokens of a request's rows, as the docstring says."""
    if length < 0 or length >= end:
        return []
    return [b + 1, *(10 * (b + 1) + j for j in range(num_drafts))][: end - length]


@pytest.mark.slow
@each_form
@given(requests=REQUESTS)
@settings(max_examples=60, deadline=None)
def test_rows_lie_behind_each_other_and_pads_behind_them(form, requests):
    make_rows, _, _ = FORMS[form]
    rows = make_rows(**slots_of(requests))
    inputs = [inputs_of(b, *each) for b, each in enumerate(requests)]
    expected = [
        (token_id, requests[b][1] + j, b, j)
        for b, token_ids in enumerate(inputs)
        for j, token_id in enumerate(token_ids)
    ]
    pads = [(0, 0, 0, 0)] * (4 * len(requests) - len(expected))
    columns = (rows.token_ids, rows.positions, rows.requests, rows.ranks)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected + pads
    assert rows.starts.tolist() == [sum(map(len, inputs[:b])) for b in range(len(inputs) + 1)]
    assert rows.context_lens.tolist() == [
        length if own else 0 for own, (_, length, _) in zip(inputs, requests, strict=True)
    ]
    assert rows.drafts.tolist() == [own[1:] + [-1] * (3 - len(own[1:])) for own in inputs]
    assert sorted(rows.place.flatten().tolist()) == list(range(4 * len(requests)))
    for b, own in enumerate(inputs):
        assert rows.place[b, : len(own)].tolist() == [rows.starts[b] + j for j in range(len(own))]
    assert (rows.starts.dtype, rows.context_lens.dtype) == (torch.int32, torch.int32)


@pytest.mark.slow
@each_form
@given(requests=REQUESTS, numbers=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_slots_follow_what_is_accepted(form, requests, numbers):
    make_rows, accept, advance = FORMS[form]
    slots = slots_of(requests)
    drafts = make_rows(**slots).drafts
    made = [
        [numbers.choice([draft, draft, 5, -1]) for draft in row] + [numbers.choice([7, -1])]
        for row in drafts.tolist()
    ]
    num_accepted = accept(torch.tensor(made), drafts).tolist()
    expected = []
    for row, own in zip(made, drafts.tolist(), strict=True):
        wrong = [j for j, draft in enumerate(own) if draft < 0 or row[j] != draft]
        expected.append(min(wrong, default=3))
    assert num_accepted == expected
    draws, texts = torch.arange(100, 100 + S), torch.zeros(S, WIDTH, dtype=torch.int32)
    before = [t.clone() for t in (slots["last_token_ids"], slots["context_lens"], draws, texts)]
    slots.pop("drafts")
    out = advance(torch.tensor(made), drafts, torch.tensor(num_accepted), **slots, draws=draws, texts=texts)
    for b, (kept, row) in enumerate(zip(num_accepted, made, strict=True)):
        assert out[b].tolist() == [
            *row[: kept + 1],
            *[NOT_MADE] * (3 - kept),
            sum(draft >= 0 for draft in drafts[b].tolist()),
        ]
    after = [t.clone() for t in (slots["last_token_ids"], slots["context_lens"], draws, texts)]
    for b, (_, length, end) in enumerate(requests):
        if not 0 <= length < end:
            continue
        for tensor, value in zip(
            before[:3], (max(made[b][num_accepted[b]], 0), length + num_accepted[b] + 1, None), strict=True
        ):
            tensor[b] = tensor[b] + num_accepted[b] + 1 if value is None else value
        before[3][b, length + 1 : length + 5] = torch.tensor(made[b]).clamp(min=0)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@each_form
def test_wrong_arguments_are_refused(form):
    make_rows, accept, advance = FORMS[form]
    arguments = slots_of([(3, 4, 9), (1, 2, 9)])
    assert_each_wrong_tensor_is_refused(make_rows, arguments, ("drafts width",))
    made = {"made": torch.zeros(2, 4, dtype=torch.int64), "drafts": arguments.pop("drafts")}
    assert_each_wrong_tensor_is_refused(accept, made)
    others = {
        "num_accepted": torch.zeros(2, dtype=torch.int64),
        **arguments,
        "draws": torch.zeros(S, dtype=torch.int64),
        "texts": torch.zeros(S, WIDTH, dtype=torch.int32),
    }
    assert_each_wrong_tensor_is_refused(advance, {**made, **others}, ("texts width",))


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("num_requests", [1, 2, 3, 5])
def test_on_a_gpu_kernels_leave_what_their_twins_do(num_requests):
    requests = [(b % 4, 3 * b - 3 if b != 1 else 9, 9 + (b == 4)) for b in range(num_requests)]
    left = []
    for form, device in (("plain", "cpu"), ("triton", "cuda")):
        make_rows, accept, advance = FORMS[form]
        slots = slots_of(requests, device)
        rows = make_rows(**slots)
        slots.pop("drafts")
        made = torch.cat([rows.drafts, torch.full_like(rows.drafts[:, :1], 7)], dim=1)
        made[:, 1] = 5
        draws = torch.arange(S, device=device)
        texts = torch.zeros(S, WIDTH, dtype=torch.int32, device=device)
        num_accepted = accept(made, rows.drafts)
        out = advance(made, rows.drafts, num_accepted, **slots, draws=draws, texts=texts)
        left.append([t.tolist() for t in (*rows, num_accepted, out, draws, texts, *slots.values())])
    assert left[0] == left[1]
