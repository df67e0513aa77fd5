"""Lesson 07: what an attention kernel's programs touch."""

import pytest

from labkit.kernels import paged_attention_append_triton, triton_status
from labkit.learn.lesson_07 import attention

pytestmark = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
KEYS = "k_cache_ptr"


def test_what_a_kernel_s_programs_touch_is_recorded_and_is_what_the_tables_say():
    tables, lengths = [[0, 2], [0, 3], [4, 5]], [6, 6, 4]
    run = attention.record_attention(paged_attention_append_triton, tables, lengths, num_blocks=6)
    assert run.strays() == [] and len(run.programs) == 3
    places = [[(row[t // 4], t % 4) for t in range(n + 1)] for row, n in zip(tables, lengths, strict=True)]
    found = [(set(), set()) for _ in tables]
    for offset, kind, (b, _) in run.touched(KEYS):
        block, _, place, _ = run.layouts[KEYS].index_of(offset)
        found[b][kind == "write"].add((block, place))
    assert found == [({*reads}, {written}) for *reads, written in places]
