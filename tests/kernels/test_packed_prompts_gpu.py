"""Prompts that lie behind each other, on a GPU: at full size, without waiting, and in graphs."""

import pytest
import torch
from attention_append_cases import TOLERANCE
from packed_cases import assert_attends_rows, assert_stores_rows, dense_prompts, make_packed
from torch import Tensor
from triton_marks import assert_host_does_not_wait, captured, dtypes, needs_triton

from labkit.kernels import (
    PackedRows,
    kv_append_packed_triton,
    packed_attention_plain,
    packed_attention_triton,
)

pytestmark = [pytest.mark.slow, pytest.mark.cuda, needs_triton]

FULL = {"H": 12, "D": 64, "block_size": 64, "device": "cuda"}


@dtypes
@pytest.mark.parametrize(
    "num_rows, num_before",
    [
        ([100], [200]),
        ([1] * 70, [0, 1, 63, 64, 65, 500, 1023] * 10),
        ([30, 0, 65, 1, 129, 16], [0, 9, 64, 700, 37, 0]),
    ],
    ids=["a chunk of one", "single tokens", "ragged"],
)
def test_at_full_size(num_rows: list[int], num_before: list[int], dtype: torch.dtype):
    case = make_packed(num_rows, num_before, pads=21, **FULL, dtype=dtype)
    assert_stores_rows(kv_append_packed_triton, case)
    assert_attends_rows(packed_attention_triton, case, dense_prompts(case))


@dtypes
@pytest.mark.parametrize("D, block_size", [(32, 4), (80, 16), (128, 64), (20, 6)])
def test_at_other_sizes_of_heads_and_blocks(D: int, block_size: int, dtype: torch.dtype):
    case = make_packed(
        [40, 1, 70], [3, 130, 0], pads=5, H=3, D=D, block_size=block_size, dtype=dtype, device="cuda"
    )
    assert_stores_rows(kv_append_packed_triton, case)
    assert_attends_rows(packed_attention_triton, case, dense_prompts(case))


def test_places_more_than_2_to_the_31_numbers_into_the_pool_are_found():
    H, D, block_size, far = 2, 64, 64, 2**19
    pool = torch.empty(far + 2, H, block_size, D, dtype=torch.float16, device="cuda")
    pool[:2] = torch.nan  # what an index of 32 bits would find
    assert pool.stride(0) * far == 2**32
    rows = PackedRows(
        *(
            torch.tensor(numbers, dtype=torch.int32, device="cuda")
            for numbers in ([0, 80], [0], [[far, far + 1]])
        )
    )
    query, key = torch.randn(2, 80, H, D, device="cuda").half()
    kv_append_packed_triton(pool, pool, key, key, rows)
    assert torch.equal(pool[far:].transpose(1, 2).flatten(0, 1)[:80], key)
    out = packed_attention_triton(query, pool, pool, rows)
    torch.testing.assert_close(out, packed_attention_plain(query, pool, pool, rows), rtol=2**-9, atol=2**-9)


def test_the_host_does_not_wait():
    case = make_packed([40, 9], [3, 80], pads=3, **FULL, dtype=torch.float16)

    def launch() -> None:
        kv_append_packed_triton(*case.caches, case.key, case.value, case.rows)
        packed_attention_triton(case.query, *case.caches, case.rows)

    assert_host_does_not_wait(launch)


@dtypes
def test_a_graph_follows_what_lies_in_its_rows(dtype: torch.dtype):
    """Captured with nothing but pads; replayed as prompts come and go. Both kernels, twice each, so that each
    begins while the one before it ends."""
    cases = [
        make_packed(num_rows, num_before, 96 - sum(num_rows), **FULL, dtype=dtype, seed=seed)
        for seed, (num_rows, num_before) in enumerate(
            [
                ([96, 0, 0], [0, 0, 0]),
                ([1, 1, 1], [64, 0, 1000]),
                ([0, 70, 20], [5, 130, 63]),
                ([0, 0, 0], [9, 9, 9]),
                ([32, 32, 32], [0, 32, 7]),
            ]
        )
    ]
    most = max(case.rows.block_tables.shape[1] for case in cases)
    N = max(case.k_pool.shape[1] for case in cases)
    k_pool, v_pool = (torch.full((N, 12, 64, 64), torch.nan, dtype=dtype, device="cuda") for _ in range(2))
    starts, lens = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (4, 3))
    rows = PackedRows(starts, lens, torch.zeros(3, most, dtype=torch.int32, device="cuda"))
    qkv = torch.zeros(96, 3, 12, 64, dtype=dtype, device="cuda")
    query, key, value = qkv.unbind(1)

    def step() -> tuple[Tensor, Tensor]:
        outs = []
        for _ in range(2):
            kv_append_packed_triton(k_pool, v_pool, key, value, rows)
            outs.append(packed_attention_triton(query, k_pool, v_pool, rows))
        return tuple(outs)

    graph, outs = captured(step)
    for case in [*cases, *cases[::-1]]:
        for pool, cache in zip((k_pool, v_pool), case.caches, strict=True):
            pool.fill_(torch.nan)
            pool[: len(cache)] = cache
        rows.starts.copy_(case.rows.starts)
        rows.context_lens.copy_(case.rows.context_lens)
        rows.block_tables[:, : case.rows.block_tables.shape[1]] = case.rows.block_tables
        qkv.copy_(torch.stack([case.query, case.key, case.value], dim=1))
        graph.replay()
        expected = dense_prompts(case)
        for out in outs:
            torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
