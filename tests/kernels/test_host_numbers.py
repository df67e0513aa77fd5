"""Numbers between host and GPU by a kernel arrive as by a copy."""

import pytest
import torch
from devices import CUDA
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused

from labkit.engine.step.slots import packed_size
from labkit.engine.step.staging import by_copy_engine, scatter_words_plain
from labkit.kernels.host_numbers import NUMBERS_PER_PROGRAM, copy_numbers_triton, scatter_words_triton

EDGES = [0, 1, -1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
both = pytest.mark.parametrize("copy", [by_copy_engine, copy_numbers_triton], ids=["copy", "kernel"])
both_scatter = pytest.mark.parametrize("scatter", [scatter_words_plain, scatter_words_triton])


def packed(words: dict[int, int]) -> torch.Tensor:
    """int64 [packed_size(n)], of words by their places."""
    numbers = torch.tensor([*words.values()] + [77] * (len(words) % 2), dtype=torch.int32)
    together = torch.cat([torch.tensor([*words], dtype=torch.int64), numbers.view(torch.int64)])
    assert len(together) == packed_size(len(words))
    return together


@pytest.mark.slow
@both
@given(st.lists(st.sampled_from(EDGES), max_size=9))
@example(list(range(NUMBERS_PER_PROGRAM)))
@example(list(range(NUMBERS_PER_PROGRAM + 1)))
def test_all_arrive_and_nothing_behind_them_is_written(copy, numbers):
    target = torch.full((len(numbers) + 3,), 7)
    copy(torch.tensor(numbers, dtype=torch.int64), target[: len(numbers)])
    assert target.tolist() == [*numbers, 7, 7, 7]


@both_scatter
@given(st.dictionaries(st.integers(0, 8), st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])))
@example({place: place + 1 for place in range(NUMBERS_PER_PROGRAM + 1)})
def test_each_word_comes_to_its_place_and_no_other_is_written(scatter, words):
    there = torch.full((NUMBERS_PER_PROGRAM + 9,), 7, dtype=torch.int32)
    scatter(packed(words), there)
    assert there.tolist() == [words.get(place, 7) for place in range(len(there))]


def test_what_does_not_fit_is_named():
    arguments = {"source": torch.arange(3), "target": torch.arange(3)}
    free = {"source device", "target device"}
    assert_each_wrong_tensor_is_refused(copy_numbers_triton, arguments, free)
    arguments = {"packed": packed({1: 2}), "words": torch.zeros(3, dtype=torch.int32)}
    free = {"packed device", "words device", "words rows", "words width"}
    assert_each_wrong_tensor_is_refused(scatter_words_triton, arguments, free)


@pytest.mark.cuda
def test_on_a_gpu_a_kernel_reads_and_writes_pinned_memory():
    there, back = torch.zeros(5000, dtype=torch.int32, device=CUDA), torch.zeros(5000).long().pin_memory()
    scatter_words_triton(packed({4999 - i: i for i in range(5000)}).pin_memory(), there)
    assert there.tolist() == list(range(5000))[::-1]
    numbers = torch.zeros(5000, dtype=torch.int64, device=CUDA)
    copy_numbers_triton(torch.arange(5000).pin_memory(), numbers)
    copy_numbers_triton(numbers + 1, back)
    torch.cuda.synchronize()
    assert back.tolist() == list(range(1, 5001))


@pytest.mark.cuda
def test_memory_that_a_gpu_cannot_reach_is_refused():
    on_gpu, pageable = torch.arange(3, device=CUDA), torch.arange(3)
    with pytest.raises(ValueError, match="target is in memory that a GPU cannot reach"):
        copy_numbers_triton(on_gpu, pageable)
    with pytest.raises(ValueError, match="source is in memory that a GPU cannot reach"):
        copy_numbers_triton(pageable, on_gpu)
    with pytest.raises(ValueError, match="packed is in memory that a GPU cannot reach"):
        scatter_words_triton(pageable, on_gpu.int())
