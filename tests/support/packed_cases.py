"""Cases for prompts that lie behind each other, and what is made of them: dense attention in float64.

Every slot of the pools that holds no token is NaN, so whatever reads one is found out. Whole pools are
compared bit by bit, so whatever is written beside its slot is, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from attention_append_cases import KERNEL_DEVICE, TOLERANCE, bits
from torch import Tensor

from labkit.kernels import PackedRows

LAYER = 1  # of the two that a pool has


class PackedCase(NamedTuple):
    """A chunk, the pools whose layer it belongs to, and all keys and values of each prompt."""

    query: Tensor  # [T, H, D]
    key: Tensor
    value: Tensor
    rows: PackedRows
    k_pool: Tensor  # [2, N, H, block_size, D]
    v_pool: Tensor
    keys: list[Tensor]  # of each prompt, [tokens, H, D]
    values: list[Tensor]

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.k_pool[LAYER], self.v_pool[LAYER]

    @property
    def prompts(self) -> list[tuple[int, int, int]]:
        """Of each prompt: its first row, its last row and one more, its tokens before."""
        starts = self.rows.starts.tolist()
        return list(zip(starts[:-1], starts[1:], self.rows.context_lens.tolist(), strict=True))


def make_packed(
    num_rows: list[int],
    num_before: list[int] | None = None,
    pads: int = 0,
    H: int = 2,
    D: int = 8,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    device: str = KERNEL_DEVICE,
    seed: int = 0,
    group: int = 1,
) -> PackedCase:
    """Random prompts in blocks of any order, at the far end of a larger pool. Queries, keys and values are as
    the model makes them, views of one tensor; behind a prompt's blocks its table names one that there is not.
    H: heads of keys, each for a group of so many queries.
    """
    generator = torch.Generator(device).manual_seed(seed)
    num_before = num_before or [0] * len(num_rows)
    T = sum(num_rows) + pads

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    needed = [-(-(n + m) // block_size) for n, m in zip(num_rows, num_before, strict=True)]
    N = sum(needed) + 3
    order = N - 1 - torch.randperm(sum(needed), generator=generator, device=device)
    tables = torch.full((len(num_rows), max(1, *needed)), N, dtype=torch.int32, device=device)
    query, key, value = randn(T, (group + 2) * H, D).split([group * H, H, H], dim=1)
    k_pool, v_pool = (
        torch.full((2, N, H, block_size, D), torch.nan, dtype=dtype, device=device) for _ in range(2)
    )
    keys, values, first_row = [], [], 0
    for p, blocks in enumerate(order.split(needed)):
        tables[p, : len(blocks)] = blocks.int()
        before, own = num_before[p], slice(first_row, first_row + num_rows[p])
        t = torch.arange(before, device=device)
        for pool, new, made in ((k_pool, key, keys), (v_pool, value, values)):
            made.append(torch.cat([randn(before, H, D), new[own]]))
            pool[LAYER, blocks[t // block_size], :, t % block_size] = made[-1][:before]
        first_row = own.stop
    starts = torch.tensor([0, *torch.tensor(num_rows).cumsum(0).tolist()], dtype=torch.int32, device=device)
    lens = torch.tensor(num_before, dtype=torch.int32, device=device)
    return PackedCase(query, key, value, PackedRows(starts, lens, tables), k_pool, v_pool, keys, values)


def pools_with_rows(case: PackedCase) -> list[Tensor]:
    """The bits of both pools with each new token in its slot."""
    after = []
    for pool, new in ((case.k_pool, case.key), (case.v_pool, case.value)):
        expected = bits(pool).clone()
        for p, (first, end, before) in enumerate(case.prompts):
            for row in range(first, end):
                block, pos = divmod(before + row - first, pool.shape[3])
                expected[LAYER, case.rows.block_tables[p, block], :, pos] = bits(new[row])
        after.append(expected)
    return after


def dense_prompts(case: PackedCase) -> Tensor:
    """The definition, a row at a time, in float64: [T, H, D]; zeros for pads."""
    out = torch.zeros(case.query.shape, dtype=torch.float64, device=case.query.device)
    for p, (first, end, before) in enumerate(case.prompts):
        for row in range(first, end):
            seen = before + row - first + 1
            group = case.query.shape[1] // case.key.shape[1]
            keys, values = (
                each[p][:seen].double().repeat_interleave(group, 1) for each in (case.keys, case.values)
            )
            scores = torch.einsum("hd,thd->ht", case.query[row].double(), keys) / keys.shape[-1] ** 0.5
            out[row] = torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values)
    return out


def assert_stores_rows(append: Callable[..., None], case: PackedCase) -> None:
    """Each row's key and value are in their slot, and nothing else in the pools has changed."""
    expected = pools_with_rows(case)
    append(*case.caches, case.key, case.value, case.rows)
    for pool, bits_after in zip((case.k_pool, case.v_pool), expected, strict=True):
        assert torch.equal(bits(pool), bits_after)


def assert_attends_rows(attention: Callable[..., Tensor], case: PackedCase, expected: Tensor) -> None:
    """Of a case whose rows are stored."""
    out = attention(case.query, *case.caches, case.rows)
    assert (out.shape, out.dtype, out.device) == (case.query.shape, case.query.dtype, case.query.device)
    assert out.is_contiguous()
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    assert not out[case.prompts[-1][1] :].any()
