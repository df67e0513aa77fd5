"""Attention that stores as it goes: plain, in one kernel and split, against dense attention in float64.

Every slot of the pools that holds no token is NaN, the new token's own among them, so whatever reads one is
found out. Whole pools are compared bit by bit, so whatever is written beside its slot is, too.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labkit.kernels import (
    SplitWorkspace,
    checks,
    num_splits,
    paged_attention_append,
    paged_attention_append_plain,
    paged_attention_append_split_triton,
    paged_attention_append_triton,
    paged_attention_plain,
    triton_status,
)

pytestmark = pytest.mark.slow

if triton_status().mode == "interpreter":
    from triton.runtime.interpreter import InterpreterBuilder

# Kernels run in the interpreter on CPU tensors, or compiled on the GPU's.
KERNEL_DEVICE = "cuda" if triton_status().mode == "native" else "cpu"
# Half precision: one unit in the last place of the result, because the interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
LAYER = 1  # of the three that a pool has here
NOBODY = -1  # as a context length: a row that pads the batch
MOST_SPLITS = paged_attention_append.MAX_SPLITS

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
needs_interpreter = pytest.mark.skipif(
    triton_status().mode != "interpreter", reason=f"not in the interpreter: {triton_status().reason}"
)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


class Case(NamedTuple):
    """The arguments of one call, by name; the pools they are a layer of; and what is expected of the call."""

    arguments: dict[str, Tensor | int]
    k_pool: Tensor  # [L, N, H, block_size, D]
    v_pool: Tensor
    context_lens: list[int]  # of each request, NOBODY for a row that pads
    places: list[tuple[int, int, int]]  # request, block and slot of each new token
    keys: list[Tensor]  # of each request, [T, H, D]
    values: list[Tensor]


def make_case(
    context_lens: list[int],
    H: int = 2,
    D: int = 8,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    device: str = KERNEL_DEVICE,
    num_blocks: int | None = None,
    num_layers: int = 3,
    spare_slots: int = 2,
) -> Case:
    """Random requests in any slots, their blocks in any order, at the far end of a larger pool.

    Keys and values are as the model makes them, views of one tensor; the table is one of two; the rows that
    pad share the last slot. Slots that nobody is in look as if somebody were.
    """
    generator = torch.Generator(device).manual_seed(0)
    B = len(context_lens)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    def permutation(n: int) -> Tensor:
        return torch.randperm(n, generator=generator, device=device)

    needed = [0 if n == NOBODY else n // block_size + 1 for n in context_lens]  # the new token's included
    N = num_blocks or sum(needed) + 1
    blocks_of = (N - 1 - permutation(sum(needed))).split(needed)
    S, M = B + spare_slots + 1, max(1, *needed)
    slot_mapping = permutation(S - 1)[:B]
    tables = torch.full((2, S, M), N, dtype=torch.int32, device=device)  # there is no such block
    tables[:, S - 1] = 0
    lens = torch.full((S,), M * block_size - 1, dtype=torch.int32, device=device)
    lens[S - 1] = NOBODY
    k_pool, v_pool = (
        torch.full((num_layers, N, H, block_size, D), torch.nan, dtype=dtype, device=device) for _ in range(2)
    )
    keys, values = ([randn(max(n, 0), H, D) for n in context_lens] for _ in range(2))
    layer, places = num_layers // 2, []
    for b, n in enumerate(context_lens):
        if n == NOBODY:
            slot_mapping[b] = S - 1
            continue
        tables[1, slot_mapping[b]] = 0
        tables[1, slot_mapping[b], : needed[b]] = blocks_of[b].int()
        lens[slot_mapping[b]] = n
        t = torch.arange(n, device=device)
        block, pos = blocks_of[b][t // block_size], t % block_size
        k_pool[layer, block, :, pos] = keys[b]
        v_pool[layer, block, :, pos] = values[b]
        places.append((b, int(blocks_of[b][-1]), n % block_size))
    query, key_new, value_new = randn(B, 1, 3, H, D).permute(2, 0, 3, 1, 4)[:, :, :, 0]  # [B, H, D] each
    arguments = {
        "query": query,
        "key_new": key_new,
        "value_new": value_new,
        "k_cache_layer": k_pool[layer],
        "v_cache_layer": v_pool[layer],
        "block_table": tables[1],
        "context_lens": lens,
        "slot_mapping": torch.cat([slot_mapping, slot_mapping])[:B],
        "max_context_len": max(0, *context_lens),
    }
    return Case(arguments, k_pool, v_pool, context_lens, places, keys, values)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.dtype])


def workspace_for(arguments: dict) -> SplitWorkspace:
    """As small as it may be, and what lies in it is no number."""
    query = arguments["query"]
    workspace = SplitWorkspace(*query.shape, query.device)
    workspace.partial_out.fill_(torch.nan)
    workspace.partial_softmax.fill_(torch.nan)
    return workspace


def split_in(splits: int, workspace: SplitWorkspace | None = None) -> Callable[..., Tensor]:
    """The split form as one of `PagedAttentionAppend`; after each call, nobody has arrived for the next."""

    def attention(max_context_len: int, **arguments: Tensor) -> Tensor:
        space = workspace or workspace_for(arguments)
        out = paged_attention_append_split_triton(**arguments, workspace=space, splits=splits)
        assert not space.arrived.any()
        return out

    return attention


KERNELS = {
    "triton": paged_attention_append_triton,
    "in 3": split_in(3),
}
PLAIN = pytest.param(paged_attention_append_plain, id="plain")
TRITON = [pytest.param(attention, id=name, marks=needs_triton) for name, attention in KERNELS.items()]
kernels = pytest.mark.parametrize("attention", TRITON)
each_form = pytest.mark.parametrize("attention", [PLAIN, *TRITON])


def dense_attention(case: Case) -> Tensor:
    """The definition, a request at a time, in float64: [B, H, D]. A row that pads sees itself alone."""
    rows = []
    for b, query in enumerate(case.arguments["query"].double()):  # [H, D]
        keys = torch.cat([case.keys[b], case.arguments["key_new"][b : b + 1]]).double()  # [T + 1, H, D]
        values = torch.cat([case.values[b], case.arguments["value_new"][b : b + 1]]).double()
        scores = torch.einsum("hd,thd->ht", query, keys) / query.shape[-1] ** 0.5
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values))
    return torch.stack(rows)


def pools_after(case: Case) -> tuple[Tensor, Tensor]:
    """The bits of both pools with each new token in its slot."""
    after = []
    for pool, name in ((case.k_pool, "key_new"), (case.v_pool, "value_new")):
        expected = bits(pool).clone()
        for b, block, pos in case.places:
            for h in range(pool.shape[2]):
                expected[len(pool) // 2, block, h, pos] = bits(case.arguments[name][b, h])
        after.append(expected)
    return tuple(after)


def assert_attends_and_stores(attention: Callable[..., Tensor], case: Case) -> Tensor:
    """It is dense attention, each new token is in its slot, and nothing else in the pools has changed."""
    query, expected_pools = case.arguments["query"], pools_after(case)
    out = attention(**case.arguments)
    assert (out.shape, out.dtype, out.device) == (query.shape, query.dtype, query.device)
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), dense_attention(case), rtol=tolerance, atol=tolerance)
    for pool, expected in zip((case.k_pool, case.v_pool), expected_pools, strict=True):
        assert torch.equal(bits(pool), expected)
    return out


# --- the plain form --------------------------------------------------------------------------------


@dtypes
def test_the_plain_one_is_paged_attention_and_then_a_write_of_each_token(dtype: torch.dtype):
    case = make_case([3, 4, NOBODY, 0, 9, 7, NOBODY], dtype=dtype, device="cpu")
    arguments = dict(case.arguments)
    table, lens = (arguments.pop(name)[arguments["slot_mapping"]] for name in ("block_table", "context_lens"))
    del arguments["slot_mapping"]
    expected = paged_attention_plain(**arguments, block_table=table, context_lens=lens.clamp(min=0))
    k_after, v_after = pools_after(case)
    out = paged_attention_append_plain(**case.arguments)
    assert torch.equal(out, expected)
    assert torch.equal(bits(case.k_pool), k_after)
    assert torch.equal(bits(case.v_pool), v_after)
    assert len(case.places) == 5  # two of the seven rows pad


def test_the_plain_one_may_be_told_more_tokens_than_there_are():
    """max_context_len is known to the host; where it is not, all that a table has room for is enough."""
    exact, more = (make_case([5, 2, NOBODY], device="cpu") for _ in range(2))
    more.arguments["max_context_len"] = 8
    expected = paged_attention_append_plain(**exact.arguments)
    torch.testing.assert_close(paged_attention_append_plain(**more.arguments), expected)
    assert torch.equal(bits(more.k_pool), bits(exact.k_pool))


# --- every form ------------------------------------------------------------------------------------


SMALL = {
    "one empty context": {"context_lens": [0]},
    "all contexts empty": {"context_lens": [0, 0, 0]},
    "at, before and past a boundary": {"context_lens": [3, 4, 5, 8, 0, 1]},
    "rows that pad": {"context_lens": [6, NOBODY, 3, NOBODY, NOBODY, 0]},
    "nobody at all": {"context_lens": [NOBODY, NOBODY]},
    "one row that pads": {"context_lens": [NOBODY]},
    "blocks of one token": {"context_lens": [0, 1, 2, 7, NOBODY], "block_size": 1},
    "blocks of six": {"context_lens": [5, 6, 7, 12, 13], "block_size": 6},
    "blocks of 16": {"context_lens": [15, 16, 17, 40, NOBODY, 31], "block_size": 16},
    "blocks of 64": {"context_lens": [63, 64, 65, 130], "block_size": 64},
    "pieces that few or none of the programs have": {
        "context_lens": [300, 1, 64, 129],
        "block_size": 16,
        "H": 1,
    },
    "head size 20": {"context_lens": [4, 11, NOBODY, 70], "D": 20},
    "head size 1": {"context_lens": [2, 9], "D": 1},
    "head size 5, five heads": {"context_lens": [1, 6], "D": 5, "H": 5},
    "the far end of a large pool": {"context_lens": [5, 9], "num_blocks": 50},
    "every slot taken": {"context_lens": [5, 9, 2], "spare_slots": 0},
    "many slots": {"context_lens": [5, 9], "spare_slots": 40},
}
small = pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)


@small
@each_form
def test_it_is_dense_attention_and_each_token_is_in_its_slot(attention: Callable, sizes: dict):
    assert_attends_and_stores(attention, make_case(**sizes))


@dtypes
@each_form
def test_in_any_precision(attention: Callable, dtype: torch.dtype):
    assert_attends_and_stores(attention, make_case([9, 4, NOBODY, 66], D=20, dtype=dtype))


random_sizes = st.fixed_dictionaries(
    {
        "context_lens": st.lists(st.integers(NOBODY, 40), min_size=1, max_size=3),
        "H": st.integers(1, 2),
        "D": st.integers(1, 40),
        "block_size": st.sampled_from([1, 3, 4, 6, 16, 64]),
        "spare_slots": st.integers(0, 4),
    }
)


@given(random_sizes)
@settings(max_examples=50)
def test_plain_at_any_size(sizes: dict):
    assert_attends_and_stores(paged_attention_append_plain, make_case(**sizes, device="cpu"))


@needs_triton
@given(random_sizes)
@settings(max_examples=15)
def test_the_one_kernel_at_any_size(sizes: dict):
    assert_attends_and_stores(paged_attention_append_triton, make_case(**sizes))


@needs_triton
@given(
    sizes=random_sizes,
    long=st.lists(st.integers(60, 200), max_size=1),
    splits=st.integers(1, 6),
)
@settings(max_examples=15)
def test_split_at_any_size_and_in_any_number(sizes: dict, long: list[int], splits: int):
    sizes["context_lens"] = sizes["context_lens"] + long
    assert_attends_and_stores(split_in(splits), make_case(**sizes))


@each_form
@pytest.mark.parametrize("block_size", [1, 4])
def test_what_a_step_stores_the_next_one_sees(attention: Callable, block_size: int):
    """Steps from an empty cache, one request two tokens ahead, are causal attention over all tokens."""
    H, D, T = 1, 8, 9
    generator = torch.Generator(KERNEL_DEVICE).manual_seed(1)
    query, keys, values = torch.randn(3, 2, T, H, D, generator=generator, device=KERNEL_DEVICE)
    M = -(-T // block_size)
    k_cache, v_cache = (
        torch.full((2 * M, H, block_size, D), torch.nan, device=KERNEL_DEVICE) for _ in range(2)
    )
    table = torch.randperm(2 * M, generator=generator, device=KERNEL_DEVICE).view(2, M).int()
    lens = torch.zeros(2, dtype=torch.int32, device=KERNEL_DEVICE)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, keys, values)), is_causal=True
    ).transpose(1, 2)  # [2, T, H, D]
    both, ahead = (torch.tensor(slots, device=KERNEL_DEVICE) for slots in ([1, 0], [1]))
    for mapping in [ahead] * 2 + [both] * (T - 2) + [ahead.new_tensor([0])] * 2:
        now = lens[mapping].long()
        new = (x[mapping, now] for x in (query, keys, values))
        out = attention(
            **dict(zip(("query", "key_new", "value_new"), new, strict=True)),
            k_cache_layer=k_cache,
            v_cache_layer=v_cache,
            block_table=table,
            context_lens=lens,
            slot_mapping=mapping,
            max_context_len=int(now.max()),
        )
        torch.testing.assert_close(out, expected[mapping, now], rtol=1e-5, atol=1e-5)
        lens[mapping] += 1
    assert lens.tolist() == [T, T]


@each_form
def test_it_writes_to_none_of_its_other_arguments(attention: Callable):
    first, second = (make_case([9, 4, NOBODY, 0]).arguments for _ in range(2))
    attention(**first)
    for name in first.keys() - {"k_cache_layer", "v_cache_layer", "max_context_len"}:
        assert torch.equal(first[name], second[name]), name


@each_form
def test_where_the_blocks_lie_and_in_which_slots_changes_nothing(attention: Callable):
    case, moved = (make_case([9, 4, NOBODY, 14], H=1, num_layers=1) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    table, lens = (case.arguments[name] for name in ("block_table", "context_lens"))
    blocks = torch.randperm(case.k_pool.shape[1], generator=generator).to(table.device)
    slots = torch.randperm(len(table), generator=generator).to(table.device)
    where = torch.cat([blocks.argsort(), torch.tensor([len(blocks)], device=table.device)])  # N stays N
    changed = {
        "k_cache_layer": case.k_pool[0, blocks],
        "v_cache_layer": case.v_pool[0, blocks],
        "block_table": where[table.long()].int()[slots],
        "context_lens": lens[slots],
        "slot_mapping": slots.argsort()[case.arguments["slot_mapping"]],
    }
    assert not torch.equal(changed["slot_mapping"], case.arguments["slot_mapping"])
    expected = attention(**case.arguments)
    assert torch.equal(attention(**moved.arguments | changed), expected)
    assert torch.equal(bits(changed["k_cache_layer"]), bits(case.k_pool[0, blocks]))
    assert torch.equal(bits(changed["v_cache_layer"]), bits(case.v_pool[0, blocks]))


@each_form
def test_a_request_alone_or_in_a_padded_batch_gets_the_same(attention: Callable):
    together = make_case([13, 0, NOBODY, 6, NOBODY, 4], H=1)
    out = attention(**together.arguments)
    for b in (0, 1, 3, 5):
        alone = make_case([13, 0, NOBODY, 6, NOBODY, 4], H=1)
        row = {
            name: alone.arguments[name][b : b + 1]
            for name in ("query", "key_new", "value_new", "slot_mapping")
        }
        torch.testing.assert_close(attention(**alone.arguments | row)[0], out[b], rtol=1e-6, atol=1e-6)


@each_form
def test_rows_that_pad_store_nothing_though_their_table_names_a_block_in_use(attention: Callable):
    """Nobody's row of the table is all 0, and block 0 is somebody's."""
    case = make_case([7, NOBODY, 2, NOBODY], num_blocks=3)
    assert 0 in {int(case.arguments["block_table"][s, 0]) for s in case.arguments["slot_mapping"][[0, 2]]}
    assert case.arguments["block_table"][-1].tolist() == [0, 0]
    out = assert_attends_and_stores(attention, case)
    padding = case.arguments["value_new"][[1, 3]]
    torch.testing.assert_close(out[[1, 3]], padding, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:All-NaN slice", "ignore:invalid value")  # numpy, in the interpreter
@each_form
@pytest.mark.parametrize("broken", [1, 2])
@pytest.mark.parametrize("name", ["query", "key_new", "value_new"])
def test_a_row_whose_numbers_are_nan_spoils_no_other(attention: Callable, name: str, broken: int):
    """A request's, or one of a row that pads."""
    whole, spoiled = (make_case([5, 9, NOBODY, 2], H=1) for _ in range(2))
    expected = attention(**whole.arguments)
    new = spoiled.arguments[name].clone()
    new[broken] = torch.nan
    spoiled = spoiled._replace(arguments=spoiled.arguments | {name: new})
    expected_pools = pools_after(spoiled)
    out = attention(**spoiled.arguments)
    others = [b for b in range(4) if b != broken]
    assert torch.equal(out[others], expected[others])
    assert out[broken].isnan().all()
    assert torch.equal(spoiled.k_pool.isnan(), expected_pools[0].view(torch.float32).isnan())
    assert torch.equal(spoiled.v_pool.isnan(), expected_pools[1].view(torch.float32).isnan())


@each_form
@pytest.mark.parametrize("size", [80.0, -80.0])
def test_scores_past_the_range_of_exp_do_not_overflow(attention: Callable, size: float):
    case = make_case([7, 130], D=16)
    case.arguments["query"].fill_(size)
    assert_attends_and_stores(attention, case)


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The same values, laid out in memory in another order of dimensions."""
    back = torch.tensor(order).argsort().tolist()
    return tensor.permute(*order).contiguous().permute(*back)


@each_form
@pytest.mark.parametrize("order", [(1, 0, 2, 3, 4), (0, 1, 3, 2, 4), (2, 3, 1, 0, 4)], ids=str)
def test_the_pool_may_lie_in_memory_in_any_order_that_keeps_a_head_together(
    attention: Callable, order: tuple[int, ...]
):
    case = make_case([9, 4, NOBODY, 6])
    k_pool, v_pool = (permuted(pool, order) for pool in (case.k_pool, case.v_pool))
    layers = {"k_cache_layer": k_pool[LAYER], "v_cache_layer": v_pool[LAYER]}
    moved = case._replace(arguments=case.arguments | layers, k_pool=k_pool, v_pool=v_pool)
    assert_attends_and_stores(attention, moved)


@each_form
def test_query_key_and_value_may_be_laid_out_each_in_its_own_way(attention: Callable):
    case = make_case([9, 4, NOBODY, 6])
    views = {
        "query": permuted(case.arguments["query"], (1, 0, 2)),
        "key_new": case.arguments["key_new"].contiguous(),
        "value_new": case.arguments["value_new"],
        "block_table": torch.cat([case.arguments["block_table"]] * 2, dim=1)[
            :, : case.arguments["block_table"].shape[1]
        ],
    }
    assert len({view.stride() for name, view in views.items() if name != "block_table"}) == 3
    assert_attends_and_stores(attention, case._replace(arguments=case.arguments | views))


@kernels
def test_of_a_table_no_block_is_read_past_the_new_tokens(attention: Callable):
    """Those named there do not exist. (The plain one gathers whole rows; DeviceSlots has zeros there.)"""
    case = make_case([5, 0, NOBODY, 11], block_size=4)
    table = case.arguments["block_table"]
    for b, n in enumerate(case.context_lens):
        table[case.arguments["slot_mapping"][b], n // 4 + 1 if n != NOBODY else 0 :] = 2**30
    assert_attends_and_stores(attention, case)


# --- splits ----------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 5, MOST_SPLITS])
def test_in_any_number_of_programs_it_is_the_one_kernel(splits: int):
    """Also in more than there are pieces of tokens: then some have nothing but a share of 0. (Which of them
    counts the current token makes no difference, as long as it is one and not each: the sum is the same.)"""
    one, split = (make_case([200, 63, NOBODY], H=1, D=20, block_size=16) for _ in range(2))
    expected = paged_attention_append_triton(**one.arguments)
    out = assert_attends_and_stores(split_in(splits), split)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(bits(split.k_pool), bits(one.k_pool))


@needs_triton
def test_a_workspace_serves_one_call_after_the_other_whatever_their_size():
    """Made for a large batch, as an engine does it; what one call leaves is nothing to the next."""
    workspace = SplitWorkspace(6, 3, 8, torch.device(KERNEL_DEVICE))
    for splits, lens, H in [(5, [70, 140], 2), (2, [9], 3), (7, [130, NOBODY], 1), (3, [0], 1)]:
        for _ in range(2):
            assert_attends_and_stores(split_in(splits, workspace), make_case(lens, H=H))


@pytest.mark.parametrize("batch_size", [1, 3, 64, 2000])
@pytest.mark.parametrize("num_heads", [1, 12])
@pytest.mark.parametrize("max_tokens", [0, 1, 100, 1024])
def test_the_number_of_splits_is_one_that_a_kernel_takes(batch_size: int, num_heads: int, max_tokens: int):
    splits = num_splits(batch_size, num_heads, max_tokens)
    assert isinstance(splits, int)
    assert 1 <= splits <= min(MOST_SPLITS, max(1, max_tokens))


def test_every_piece_of_the_longest_row_has_a_program_while_there_are_enough():
    """Also the last, in which there may be a single token."""
    for tokens, splits in ((32, 1), (33, 2), (64, 2), (65, 3), (500, 16), (1024, 16)):
        assert num_splits(1, 12, tokens) == splits
    assert [num_splits(B, 12, 1024) for B in (5, 6, 8, 16, 44, 64)] == [16, 14, 11, 5, 2, 1]


@pytest.mark.parametrize(
    "row_bytes, at_once, else_", [(2, 32, 16), (128, 32, 16), (256, 16, 8), (512, 8, 4), (2**20, 2, 1)]
)
def test_of_wide_rows_fewer_tokens_are_read_at_a_time(row_bytes: int, at_once: int, else_: int):
    """128 bytes is a head of 64 in half precision."""
    most = paged_attention_append.PROGRAMS_AT_ONCE
    assert paged_attention_append.tokens_at_a_time(most, row_bytes) == at_once
    assert paged_attention_append.tokens_at_a_time(most + 1, row_bytes) == else_


@needs_interpreter
@pytest.mark.parametrize("splits", [1, 3])
def test_the_table_is_not_read_beside_its_rows(splits: int, monkeypatch: pytest.MonkeyPatch):
    """Not after the last, which is that of the rows that pad: what is there would not be used, but it may be
    nobody's memory. Rows have one block here, and every piece of 32 tokens goes beyond it."""
    case = make_case([3, NOBODY], H=1, block_size=16)
    table = case.arguments["block_table"]
    beside = 64  # numbers on each side
    memory = torch.zeros(table.numel() + 2 * beside, dtype=torch.int32)
    case.arguments["block_table"] = memory[beside:-beside].view(table.shape).copy_(table)
    places, load = [], InterpreterBuilder.create_masked_load

    def spy(self, pointers, mask, *rest):
        places.extend((pointers.data[mask.data].astype(np.int64) - memory.data_ptr()).ravel().tolist())
        return load(self, pointers, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", spy)
    assert_attends_and_stores(split_in(splits), case)
    read = {place // 4 for place in places if 0 <= place < 4 * len(memory)}
    assert read and beside <= min(read) and max(read) < len(memory) - beside


SIZES = st.tuples(st.integers(1, 500), st.integers(1, 32), st.integers(0, 5000))


@given(SIZES, st.integers(1, 500), st.integers(1, 5000))
def test_more_rows_are_split_less_and_more_tokens_more(sizes: tuple, rows: int, tokens: int):
    batch_size, num_heads, max_tokens = sizes
    splits = num_splits(*sizes)
    assert num_splits(batch_size + rows, num_heads, max_tokens) <= splits
    assert num_splits(batch_size, num_heads + rows, max_tokens) <= splits
    assert num_splits(batch_size, num_heads, max_tokens + tokens) >= splits


def test_a_batch_that_fills_any_gpu_is_not_split_and_one_long_request_is():
    assert num_splits(10**6, 12, 1024) == 1
    assert num_splits(1, 12, 1024) > 1
    assert num_splits(1, 12, 0) == num_splits(1, 12, 1) == 1


# --- places past 2^31 ------------------------------------------------------------------------------


def far_case(device: str, dtype: torch.dtype = torch.float16) -> Case:
    """Trap 11. A block begins at number 2**32, which an index of 32 bits takes for 0, others beyond it, and
    their table has near ones between. Memory is only reserved: of 8.6 GB a few pages are touched."""
    H, D, block_size, far = 2, 64, 64, 2**18
    try:
        pool = torch.empty(far + 4, 2, H, block_size, D, dtype=dtype, device=device)
    except RuntimeError as error:  # out of memory on a GPU is one, too
        pytest.skip(f"8.6 GB could not be reserved: {error}")
    pool[:4] = torch.nan  # what an index of 32 bits would find
    generator = torch.Generator(device).manual_seed(0)
    assert pool.stride(0) * far == 2**32
    blocks_of = [[far + 2, 1, far + 3], [far], [0, far + 1]]
    context_lens = [150, 20, 64]
    B, S = len(blocks_of), 5
    slot_mapping = torch.tensor([3, 0, 2], device=device)
    table = torch.zeros(S, 3, dtype=torch.int32, device=device)
    lens = torch.full((S,), NOBODY, dtype=torch.int32, device=device)
    keys, values, places = [], [], []
    for b, (blocks, n) in enumerate(zip(blocks_of, context_lens, strict=True)):
        table[slot_mapping[b], : len(blocks)] = torch.tensor(blocks, dtype=torch.int32, device=device)
        lens[slot_mapping[b]] = n
        pool[blocks] = torch.nan
        for half, made in enumerate((keys, values)):
            made.append(torch.randn(n, H, D, generator=generator, device=device).to(dtype))
            for t in range(n):
                pool[blocks[t // block_size], half, :, t % block_size] = made[-1][t]
        places.append((b, blocks[n // block_size], n % block_size))
    query, key_new, value_new = torch.randn(3, B, H, D, generator=generator, device=device).to(dtype)
    k_layer, v_layer = pool.unbind(1)
    arguments = {
        "query": query,
        "key_new": key_new,
        "value_new": value_new,
        "k_cache_layer": k_layer,
        "v_cache_layer": v_layer,
        "block_table": table,
        "context_lens": lens,
        "slot_mapping": slot_mapping,
        "max_context_len": max(context_lens),
    }
    return Case(arguments, k_layer, v_layer, context_lens, places, keys, values)


def assert_far_places_are_found(attention: Callable, device: str) -> None:
    case = far_case(device)
    used = [*range(4), *range(2**18, 2**18 + 4)]
    layers = {"key_new": case.k_pool, "value_new": case.v_pool}
    expected = {name: bits(layer[used]).clone() for name, layer in layers.items()}
    for b, block, pos in case.places:
        for name in layers:
            expected[name][used.index(block), :, pos] = bits(case.arguments[name][b])
    out = attention(**case.arguments)
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), dense_attention(case), rtol=tolerance, atol=tolerance)
    for name, layer in layers.items():
        assert torch.equal(bits(layer[used]), expected[name])


@each_form
def test_places_more_than_2_to_the_31_numbers_into_the_pool_are_found(attention: Callable):
    assert_far_places_are_found(attention, KERNEL_DEVICE)


# --- what the wrappers refuse ----------------------------------------------------------------------


def strided(tensor: Tensor) -> Tensor:
    """The same values, the last dimension two apart."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


REFUSED = {
    "a query of another rank": ("query", lambda q: q[0], r"query has shape \[2, 8\], expected \[B, H, D\]"),
    "keys of another batch": ("key_new", lambda k: k[1:], r"key_new has shape \[2, .* expected \[3, 2, 8\]"),
    "values of fewer heads": ("value_new", lambda v: v[:, 1:], r"value_new has shape \[3, 1, 8\]"),
    "a cache of another head size": (
        "k_cache_layer",
        lambda k: k[..., 1:],
        r"k_cache_layer has shape .*, 8\]$",
    ),
    "a cache of other heads": ("k_cache_layer", lambda k: k[:, 1:], r"k_cache_layer has shape"),
    "a whole pool": (
        "k_cache_layer",
        lambda k: k[None],
        r"k_cache_layer has shape \[1, .* \[N, 2, block_size",
    ),
    "values of fewer blocks": ("v_cache_layer", lambda v: v[1:], r"v_cache_layer has shape"),
    "values of smaller blocks": ("v_cache_layer", lambda v: v[:, :, 1:], r"v_cache_layer has shape"),
    "tables of all layers": ("block_table", lambda t: t[None], r"block_table has shape .* expected \[S, M\]"),
    "lengths of fewer slots": (
        "context_lens",
        lambda n: n[1:],
        r"context_lens has shape \[5\], expected \[6\]",
    ),
    "lengths of the requests": (
        "context_lens",
        lambda n: n[:3],
        r"context_lens has shape \[3\], expected \[6\]",
    ),
    "lengths by column": ("context_lens", lambda n: n[:, None], r"context_lens has shape \[6, 1\]"),
    "a mapping of another batch": ("slot_mapping", lambda s: s[1:], r"slot_mapping has shape \[2\].* \[3\]"),
    "a mapping by column": ("slot_mapping", lambda s: s[:, None], r"slot_mapping has shape \[3, 1\]"),
    "keys of another dtype": ("key_new", Tensor.half, r"key_new is torch.float16, expected torch.float32"),
    "a cache of another dtype": ("v_cache_layer", Tensor.half, r"v_cache_layer is torch.float16"),
    "a table in int64": ("block_table", Tensor.long, r"block_table is torch.int64, expected torch.int32"),
    "lengths in int64": ("context_lens", Tensor.long, r"context_lens is torch.int64, expected torch.int32"),
    "a mapping in int32": ("slot_mapping", Tensor.int, r"slot_mapping is torch.int32, expected torch.int64"),
    "values on another device": ("value_new", on_meta, r"value_new is on meta, expected"),
    "a cache on another device": ("k_cache_layer", on_meta, r"k_cache_layer is on meta"),
    "a table on another device": ("block_table", on_meta, r"block_table is on meta"),
    "lengths on another device": ("context_lens", on_meta, r"context_lens is on meta"),
    "a mapping on another device": ("slot_mapping", on_meta, r"slot_mapping is on meta"),
    "a query with gaps": ("query", strided, r"query has strides .*contiguous"),
    "a cache with gaps": ("k_cache_layer", strided, r"k_cache_layer has strides .*contiguous"),
    "a table with gaps": ("block_table", strided, r"block_table has strides .*contiguous"),
    "lengths with gaps": ("context_lens", strided, r"context_lens has strides .*contiguous"),
    "a mapping with gaps": ("slot_mapping", strided, r"slot_mapping has strides .*contiguous"),
    "caches laid out differently": (
        "v_cache_layer",
        lambda v: permuted(v, (0, 2, 1, 3)),
        r"v_cache_layer has strides .*, k_cache_layer",
    ),
}


def assert_refused(attention: Callable, case: Case, changes: dict, message: str) -> None:
    """With an error that begins so, and before anything is written."""
    before = [bits(pool).clone() for pool in (case.k_pool, case.v_pool)]
    with pytest.raises(ValueError, match=f"^{message}"):
        attention(**case.arguments | changes)
    assert torch.equal(bits(case.k_pool), before[0])
    assert torch.equal(bits(case.v_pool), before[1])


@each_form
@pytest.mark.parametrize("name, change, message", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(attention: Callable, name: str, change: Callable, message: str):
    case = make_case([7, 5, NOBODY])
    workspace = workspace_for(case.arguments)
    if attention is KERNELS["in 3"]:
        attention = split_in(3, workspace)  # made for the right arguments
    assert_refused(attention, case, {name: change(case.arguments[name])}, message)


@each_form
@pytest.mark.parametrize("bad", [-1, 6])
def test_in_debug_mode_a_slot_out_of_range_is_refused_by_name(
    attention: Callable, bad: int, monkeypatch: pytest.MonkeyPatch
):
    case = make_case([7, 5, NOBODY])
    mapping = case.arguments["slot_mapping"].clone()
    mapping[1] = bad
    monkeypatch.setattr(checks, "DEBUG", True)
    message = "slot_mapping has values from .*, outside of 0 to 5$"
    assert_refused(attention, case, {"slot_mapping": mapping}, message)
    assert_attends_and_stores(attention, case)


@needs_triton
@pytest.mark.parametrize("splits", [-1, 0, MOST_SPLITS + 1])
def test_a_number_of_splits_that_cannot_be_is_refused(splits: int):
    message = f"splits is {splits}, expected 1 to {MOST_SPLITS}$"
    assert_refused(split_in(splits), make_case([7, 5]), {}, message)


@needs_triton
@pytest.mark.parametrize("batch_size, num_heads", [(2, 2), (5, 1)])
def test_a_workspace_that_is_too_small_is_refused(batch_size: int, num_heads: int):
    workspace = SplitWorkspace(batch_size, num_heads, 8, torch.device(KERNEL_DEVICE))
    assert_refused(split_in(2, workspace), make_case([7, 5, NOBODY]), {}, "workspace ")
    assert not workspace.arrived.any()


# --- on a GPU --------------------------------------------------------------------------------------

FULL = {"H": 12, "D": 64, "block_size": 64}


def full_lengths(n: int) -> list[int]:
    """Random, up to the longest context that GPT-2 has room to append to; every fifth row pads."""
    lengths = torch.randint(0, 1024, (n,), generator=torch.Generator().manual_seed(0)).tolist()
    return [0, 1023, 64, 63, *(NOBODY if i % 5 == 4 else length for i, length in enumerate(lengths))]


GPU_FORMS = {
    "plain": paged_attention_append_plain,
    "triton": paged_attention_append_triton,
    **{f"in {n}": split_in(n) for n in (1, 2, 3, 5, 8, 16, MOST_SPLITS)},
}
gpu_forms = pytest.mark.parametrize(
    "attention",
    [
        pytest.param(attention, id=name, marks=() if name == "plain" else needs_triton)
        for name, attention in GPU_FORMS.items()
    ],
)
gpu_kernels = pytest.mark.parametrize(
    "attention",
    [pytest.param(GPU_FORMS[name], id=name, marks=needs_triton) for name in ("triton", "in 1", "in 5")],
)


@pytest.mark.cuda
@dtypes
@gpu_forms
def test_on_a_gpu_it_attends_and_stores_at_full_size(attention: Callable, dtype: torch.dtype):
    assert_attends_and_stores(attention, make_case(full_lengths(60), **FULL, dtype=dtype, device="cuda"))


@pytest.mark.cuda
@gpu_forms
@pytest.mark.parametrize("D, block_size", [(64, 16), (80, 6), (128, 64), (20, 1), (64, 4)])
def test_on_a_gpu_at_other_sizes_of_heads_and_blocks(attention: Callable, D: int, block_size: int):
    lengths = [0, 200, 64, NOBODY, 5, 130]
    assert_attends_and_stores(attention, make_case(lengths, 3, D, block_size, device="cuda"))


@pytest.mark.cuda
@gpu_forms
@pytest.mark.parametrize("context_len", [NOBODY, 0, 1, 500, 1023])
def test_on_a_gpu_one_request_alone(attention: Callable, context_len: int):
    assert_attends_and_stores(attention, make_case([context_len], **FULL, dtype=torch.float16, device="cuda"))


@pytest.mark.cuda
@needs_triton
@dtypes
def test_on_a_gpu_all_forms_leave_the_same_bytes(dtype: torch.dtype):
    cases = {name: make_case(full_lengths(12), **FULL, dtype=dtype, device="cuda") for name in GPU_FORMS}
    before = bits(cases["plain"].k_pool).clone()
    for name, case in cases.items():
        GPU_FORMS[name](**case.arguments)
        assert torch.equal(bits(case.k_pool), bits(cases["plain"].k_pool)), name
        assert torch.equal(bits(case.v_pool), bits(cases["plain"].v_pool)), name
    assert not torch.equal(bits(cases["plain"].k_pool), before)


@pytest.mark.cuda
@gpu_forms
def test_on_a_gpu_places_more_than_2_to_the_31_numbers_into_the_pool_are_found(attention: Callable):
    assert_far_places_are_found(attention, "cuda")


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("splits", [2, 5, 16, MOST_SPLITS])
def test_on_a_gpu_the_order_in_which_programs_arrive_changes_no_bit(splits: int):
    case = make_case(full_lengths(28), **FULL, dtype=torch.float16, device="cuda")
    attention = split_in(splits, workspace_for(case.arguments))
    first = attention(**case.arguments)
    for _ in range(50):
        assert torch.equal(attention(**case.arguments), first)


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_a_workspace_serves_calls_that_follow_each_other_at_once():
    """Nobody waits for the GPU between them; batches and splits differ."""
    workspace = SplitWorkspace(32, 12, 64, torch.device("cuda"))
    workspace.partial_out.fill_(torch.nan)
    cases = [make_case(full_lengths(n)[:n], **FULL, device="cuda") for n in (32, 1, 7, 20)]
    expected = [dense_attention(case) for case in cases]
    torch.cuda.synchronize()
    outs = [
        paged_attention_append_split_triton(
            **{k: v for k, v in case.arguments.items() if k != "max_context_len"},
            workspace=workspace,
            splits=splits,
        )
        for splits in (16, 2, 5)
        for case in cases
    ]
    for out, dense in zip(outs, expected * 3, strict=True):
        torch.testing.assert_close(out.double(), dense, rtol=1e-5, atol=1e-5)
    assert not workspace.arrived.any()


@pytest.mark.cuda
@gpu_kernels
def test_on_a_gpu_the_host_does_not_wait(attention: Callable, monkeypatch: pytest.MonkeyPatch):
    """Trap 3: no index is read back, nothing is copied from the host."""
    monkeypatch.setattr(checks, "DEBUG", False)
    case = make_case([9, 64, NOBODY, 500], **FULL, dtype=torch.float16, device="cuda")
    workspace = workspace_for(case.arguments)

    def launch() -> None:
        if attention is paged_attention_append_triton:
            attention(**case.arguments)
            return
        tensors = {k: v for k, v in case.arguments.items() if k != "max_context_len"}
        paged_attention_append_split_triton(**tensors, workspace=workspace, splits=5)

    launch()  # compiled by now
    torch.cuda.set_sync_debug_mode("error")
    try:
        launch()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("splits", [None, 1, 5, 16])
def test_on_a_gpu_a_graph_of_it_follows_what_lies_in_its_tensors(splits: int | None):
    """Captured while all rows pad; replayed as requests come, grow and go. None: the one kernel."""
    real = make_case([130, 64, 0, 1000], **FULL, device="cuda")
    arguments = {k: v for k, v in real.arguments.items() if k != "max_context_len"}
    lens, mapping = (arguments[name].clone() for name in ("context_lens", "slot_mapping"))
    nobody = len(lens) - 1
    arguments["slot_mapping"] = torch.full_like(mapping, nobody)
    workspace = workspace_for(arguments)

    def step() -> Tensor:
        if splits is None:
            return paged_attention_append_triton(**arguments, max_context_len=0)
        return paged_attention_append_split_triton(**arguments, workspace=workspace, splits=splits)

    before = bits(real.k_pool).clone()
    step()  # compiled by now
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    assert torch.equal(out, arguments["value_new"])  # each row sees itself alone
    assert torch.equal(bits(real.k_pool), before)
    for rows in ([0, 1, 2, 3], [2, 0], [3], []):
        padded = [*(int(mapping[b]) for b in rows), *[nobody] * (4 - len(rows))]
        arguments["slot_mapping"].copy_(torch.tensor(padded))
        graph.replay()
        dense = dense_attention(
            real._replace(
                keys=[*(real.keys[b] for b in rows), *[real.keys[0][:0]] * (4 - len(rows))],
                values=[*(real.values[b] for b in rows), *[real.values[0][:0]] * (4 - len(rows))],
            )
        )
        torch.testing.assert_close(out.double(), dense, rtol=1e-5, atol=1e-5)
        assert not workspace.arrived.any()
