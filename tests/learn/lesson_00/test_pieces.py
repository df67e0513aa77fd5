"""Lesson 00's pieces of paged attention: together they are the package's, and a piece of another shape is
told."""

import pytest
import torch

from labkit.kernels import paged_attention_plain
from labkit.learn import BrokenContract
from labkit.learn.lesson_00.pieces import check_shape, contiguous_gather, gather, paged_attention, weights

POOL = torch.arange(5 * 2 * 3 * 1).view(5, 2, 3, 1).float()  # 5 blocks of 3 tokens, 2 heads of size 1


def test_gather_reads_the_blocks_that_the_row_names_in_order():
    row = torch.tensor([4, 1, 0], dtype=torch.int32)
    keys = gather(POOL, row, 5)
    assert keys[:, :, 0].tolist() == [[24, 25, 26, 6, 7], [27, 28, 29, 9, 10]]
    assert gather(POOL, row, 3)[:, :, 0].tolist() == [[24, 25, 26], [27, 28, 29]]  # a full block


def test_a_contiguous_read_is_right_for_the_pools_first_request_alone():
    first, second = torch.tensor([0, 1]), torch.tensor([2, 3])
    assert contiguous_gather(POOL, first, 4).equal(gather(POOL, first, 4))
    assert not contiguous_gather(POOL, second, 4).equal(gather(POOL, second, 4))


def test_weights_are_the_softmax_of_scaled_scores_however_large():
    generator = torch.Generator().manual_seed(0)
    query, keys = torch.randn(16, generator=generator), torch.randn(7, 16, generator=generator)
    for factor in (1, 1000):
        expected = (factor * (keys @ query) / 4).softmax(0)
        torch.testing.assert_close(weights(factor * query, keys), expected)


def test_the_pieces_together_are_the_packages_attention():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 3, 2, 8, generator=generator)
    k_cache, v_cache = torch.randn(2, 9, 2, 4, 8, generator=generator)
    table = torch.tensor([[7, 2, 5], [3, 0, 0], [8, 1, 0]], dtype=torch.int32)
    arguments = (query, key, value, k_cache, v_cache, table, torch.tensor([10, 1, 8], dtype=torch.int32), 10)
    torch.testing.assert_close(paged_attention()(*arguments), paged_attention_plain(*arguments))


def test_a_piece_of_another_shape_is_told():
    check_shape("gather returns [H, T, D]", POOL, (5, 2, 3, 1))
    with pytest.raises(
        BrokenContract, match=r"gather returns \[T\], here \[2, 3\]\. It gave \[5, 2, 3, 1\]\."
    ):
        check_shape("gather returns [T]", POOL, (2, 3))
    with pytest.raises(BrokenContract, match=r"here \[2\]\. It gave NoneType\."):
        check_shape("weights returns [T]", None, (2,))
