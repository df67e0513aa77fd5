"""Lesson 04's toy: the package's identity-pos kernel, recorded."""

import pytest
import torch
from triton_marks import needs_triton

from labkit.learn.lesson_03.toy import runs_of
from labkit.learn.lesson_04.toy import TritonWrite


@needs_triton
@pytest.mark.parametrize("slots", [(1, 3, 2), (1, 1, 1)])
def test_a_whole_batch_is_one_launch_and_each_request_is_in_its_slot(slots):
    (run,) = runs_of(TritonWrite, slots)
    assert run.grid == (3, 2, 1) and run.strays() == []
    written = {run.layouts["k_cache_ptr"].index_of(o)[0::2] for o, _, _ in run.touched("k_cache_ptr")}
    assert written == set(zip((3, 0, 2), slots, strict=True))


def test_a_part_of_a_batch_is_left_to_the_rung_below():
    caches, new = torch.zeros(2, 5, 2, 4, 6), torch.ones(2, 3, 2, 6)
    assert TritonWrite(torch.device("cpu")).write(*caches, *new, [0, 2], [3, 2], [1, 0]) == "generic"
