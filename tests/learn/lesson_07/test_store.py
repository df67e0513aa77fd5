"""Lesson 07's trials of an attention that stores: what they see, and what they compare with."""

import re

import pytest
from helpers import build_of

from labkit.kernels import paged_attention_append_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_07.store import CASES, FAR, Case, far_block, right_places


def test_a_case_knows_where_its_tokens_go():
    case = Case((0, 2, 1), ((4, 0), (5, 1), (0, 0)), (3, 6, -1))
    assert case.places == {(4, 3): 0, (1, 2): 2}
    assert str(case) == (
        "in a batch with row 0: length 3, blocks [4, 0] (slot 0); row 1: length -1, blocks [0, 0] (slot 2); "
        "row 2: length 6, blocks [5, 1] (slot 1), in blocks of 4"
    )


def test_there_is_a_boundary_an_empty_context_and_a_padded_row():
    lengths = {length % case.block_size for case in CASES for length in case.lengths if length > 0}
    assert {0, 1, 2} <= lengths and {0, -1} <= {n for case in CASES for n in case.lengths}


def test_the_plain_twin_passes_and_is_called_for_each_case():
    sizes = []

    def attention(*tensors):
        sizes.append(tensors[3].shape[2])
        return paged_attention_append_plain(*tensors)

    right_places(build_of("07", kv_write=attention))
    assert sizes == [case.block_size for case in CASES]
    far_block(build_of("07", kv_write=attention))
    assert sizes[-1] == 64


@pytest.mark.parametrize(("shift", "where"), [(1, "in the next layer, "), (-1, "in the layer before, ")])
def test_a_store_in_another_layer_is_told(shift, where):
    def attention(query, key, value, k_cache, v_cache, *rest):
        out = paged_attention_append_plain(query, key, value, k_cache, v_cache, *rest)
        k_cache.as_strided((1,), (1,), k_cache.storage_offset() + shift * k_cache.numel())[0] = 7
        return out

    words = f"a key {where}in place 0 of block 0, head 0, number 0 of 16, was "
    with pytest.raises(BrokenContract, match=re.escape(words)):
        right_places(build_of("07", kv_write=attention))


def test_what_is_lost_in_a_large_pool_is_told():
    def forgets(query, key, value, k_cache, *rest):
        return (
            query if len(k_cache) > FAR else paged_attention_append_plain(query, key, value, k_cache, *rest)
        )

    right_places(build_of("07", kv_write=forgets))
    with pytest.raises(BrokenContract, match="what was stored is not there"):
        far_block(build_of("07", kv_write=forgets))
