"""Lesson 07: the launch of a reader's kernel, and what its programs touch."""

import pytest
import torch

from labkit.kernels import paged_attention_append_triton, triton_status
from labkit.learn.lesson_07 import attention
from labkit.learn.lesson_07.attention import launch

pytestmark = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
DEVICE = torch.device("cuda" if triton_status().mode == "native" else "cpu")


def arguments(head_dim=16, block_size=4):
    """Of an attention that stores: contexts that end in a block, at its end, that are empty, and padding."""
    like = torch.Generator().manual_seed(0)
    lengths = [5, 8, 0, -1]
    qkv = torch.randn(len(lengths), 3, 2, head_dim, generator=like).to(DEVICE)
    caches = torch.randn(2, 6, 2, block_size, head_dim, generator=like).to(DEVICE)
    tables = torch.tensor([[4, 1, 0], [2, 5, 0], [3, 0, 0], [0, 0, 0]], dtype=torch.int32, device=DEVICE)
    lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    return [*qkv.unbind(1), *caches, tables, lens, torch.arange(4, device=DEVICE), 8]


def test_what_does_not_fit_is_refused_by_name():
    given = arguments()
    with pytest.raises(ValueError, match=r"key_new has strides \(32, 16, 1\), query \(96, 16, 1\)"):
        launch(None, given[0], given[1].contiguous(), *given[2:])
    apart = [torch.empty(6, 2, 2, 4, 16, device=DEVICE)[:, :, 0] for _ in range(2)]
    with pytest.raises(ValueError, match=r"k_cache_layer has strides .*, expected a block in one piece"):
        launch(None, *given[:3], *apart, *given[5:])


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
