"""Lesson 03's offsets: what a kernel is told of strides, and where 32 bits end."""

import pytest
import torch

from labkit.learn.lesson_03.offsets import first_block_past_int32, pool_past_int32, sizes


def test_sizes_are_a_kernels_arguments_by_name():
    cache = torch.zeros(5, 2, 4, 6)
    qkv = torch.zeros(3, 3, 2, 6)
    strides = {"stride_n": 48, "stride_h": 24, "stride_t": 6, "new_stride_b": 36, "new_stride_h": 6}
    assert sizes(cache, new=qkv[:, 1]) == strides | {"D": 6, "BLOCK_D": 8}
    both = sizes(cache, key=qkv[:, 1], value=qkv[:, 2].contiguous())
    assert (both["key_stride_b"], both["value_stride_b"], both["BLOCK_D"]) == (36, 12, 8)


@pytest.mark.parametrize("numbers", [12 * 64 * 64, 32 * 16 * 128, 5])
def test_the_first_block_past_int32(numbers):
    block = first_block_past_int32(numbers)
    largest = torch.iinfo(torch.int32).max
    assert (block - 1) * numbers <= largest < block * numbers


def test_one_pointer_for_all_layers_overflows_in_a_smaller_cache():
    per_layer, all_layers = (pool_past_int32(pointers, H=12, D=64) for pointers in (12, 1))
    assert per_layer == {
        "pointers": 12,
        "numbers per block": 49152,
        "first bad block": 43691,
        "cache (GB)": 103.1,
    }
    assert all_layers["cache (GB)"] == pytest.approx(103.1 / 12, abs=0.05)
