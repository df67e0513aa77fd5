"""Drafts from a text itself: by the kernel, by its plain twin, and by a loop over Python lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused
from triton_marks import needs_triton, on_cpu, twins

from labkit.kernels import ngram_drafts_plain, ngram_drafts_triton
from labkit.kernels.ngram_drafts import NO_DRAFT

WIDTH = 40
each_form = pytest.mark.parametrize("ngram_drafts", twins(ngram_drafts_plain, ngram_drafts_triton, on_cpu))


def drafts_of(text: list[int], limit: int, num_drafts: int) -> list[int]:
    """What the docstring says, word by word."""
    for n in (3, 2):
        for after in range(len(text) - 1, n - 1, -1):
            if text[after - n : after] == text[-n:]:
                return text[after:][: min(limit, num_drafts)]
    return []


def arguments(texts: list[list[int]], limits: list[int], device: str = "cpu", num_drafts: int = 4) -> dict:
    """Texts in slots from 1 on; in slot 0, another one. What lies behind a text is what was refused there."""
    rows = torch.full((len(texts) + 1, WIDTH), 1, dtype=torch.int32)
    for row, text in zip(rows[1:], texts, strict=True):
        row[: len(text)] = torch.tensor(text, dtype=torch.int32)
    lens = torch.tensor([5, *(len(text) - 1 for text in texts)], dtype=torch.int32)
    made = {"texts": rows, "context_lens": lens, "slot_mapping": torch.arange(len(texts)) + 1}
    on_device = {name: tensor.to(device) for name, tensor in made.items()}
    return {**on_device, "limits": torch.tensor(limits, device=device), "num_drafts": num_drafts}


@pytest.mark.slow
@each_form
@given(
    texts=st.lists(st.lists(st.integers(0, 2), max_size=WIDTH), min_size=1, max_size=4),
    limits=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    num_drafts=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_drafts_come_from_behind_the_latest_earlier_place_of_the_last_tokens(
    ngram_drafts, texts, limits, num_drafts
):
    limits = limits[: len(texts)]
    made = ngram_drafts(**arguments(texts, limits, num_drafts=num_drafts)).tolist()
    expected = [drafts_of(text, limit, num_drafts) for text, limit in zip(texts, limits, strict=True)]
    assert made == [each + [NO_DRAFT] * (num_drafts - len(each)) for each in expected]


@each_form
def test_three_tokens_are_followed_where_two_would_lead_elsewhere(ngram_drafts):
    text = [1, 2, 3, 7, 8, 9, 2, 3, 6, 5, 1, 2, 3]
    assert ngram_drafts(**arguments([text, text], [9, 2])).tolist() == [[7, 8, 9, 2], [7, 8, -1, -1]]


@each_form
def test_tensors_that_do_not_fit_are_refused(ngram_drafts):
    assert_each_wrong_tensor_is_refused(
        ngram_drafts, arguments([[1, 2, 1, 2]], [4]), {"texts width", "slot_mapping rows", "limits rows"}
    )
    with pytest.raises(ValueError, match="num_drafts is 0, expected 1 or more"):
        ngram_drafts(**arguments([[1, 2]], [4], num_drafts=0))


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("length", [2, 3, 1023, 1024, 1025, 5000])
def test_on_a_gpu_the_kernel_makes_its_twins_drafts(length):
    torch.manual_seed(length)
    texts = torch.randint(0, 9, (5, 5003), dtype=torch.int32, device="cuda")
    lens = torch.tensor([length - 1, length // 2, 0, -1, length - 1], dtype=torch.int32, device="cuda")
    slots = torch.tensor([4, 3, 2, 1, 0], device="cuda")
    limits = torch.tensor([7, 7, 7, 7, 3], device="cuda")
    made = [draft(texts, lens, slots, limits, 7) for draft in (ngram_drafts_plain, ngram_drafts_triton)]
    assert made[0].tolist() == made[1].tolist()
