"""Shares put together: right in any order, the same bits in one."""

import pytest
import torch

from labkit.learn.lesson_13.merges import merged, num_results, parts_of


def test_shares_together_are_the_attention_of_all_tokens():
    scores, values = torch.randn(2, 90, generator=torch.Generator().manual_seed(13))
    expected = (scores.softmax(0) * values).sum().item()
    assert merged(parts_of(90, 1)) == pytest.approx(expected, abs=1e-6)
    assert merged(parts_of(90, 9)) == pytest.approx(expected, abs=1e-6)


def test_one_order_gives_one_result_and_many_give_several():
    assert num_results(in_order=True) == 1 < num_results(in_order=False)
