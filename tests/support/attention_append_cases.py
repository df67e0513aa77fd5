"""Cases for attention that stores as it goes, and what it is compared with: dense attention in float64.

Every slot of the pools that holds no token is NaN, the new token's own among them, so whatever reads one is
found out. Whole pools are compared bit by bit, so whatever is written beside its slot is, too.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from triton_marks import KERNEL_DEVICE, needs_triton

from labkit.kernels import (
    HeadTransform,
    SharePlan,
    SplitWorkspace,
    paged_attention_append_plain,
    paged_attention_append_shares_triton,
    paged_attention_append_split_triton,
    paged_attention_append_triton,
    plan_shares_triton,
    split_attention,
)

# Half precision: one unit in the last place of the result, because the interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
# What a number's bits are read as.
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
BITS[torch.uint8] = torch.uint8
EPS = 1e-6  # of norms
NOBODY = -1  # as a context length: a row that pads the batch
MOST_SPLITS = split_attention.MAX_SPLITS
FAR_BLOCKS = [*range(4), *range(2**18, 2**18 + 4)]  # that are touched of a far case


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
    group: int = 1,
) -> Case:
    """Random requests in any slots, their blocks in any order, at the far end of a larger pool.

    Keys and values are as the model makes them, views of one tensor; the table is one of two; the rows that
    pad share the last slot. Slots that nobody is in look as if somebody were. H: heads of keys, each for a
    group of so many queries.
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
    query, key_new, value_new = randn(B, (group + 2) * H, D).split([group * H, H, H], dim=1)
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


def make_transform(
    D: int, norms: bool, dtype: torch.dtype, device: str, positions: int = 200
) -> HeadTransform:
    like = torch.Generator(device).manual_seed(7)
    angles = torch.rand(positions, D // 2, generator=like, device=device) * 6
    weights = 1 + torch.randn(2, D, generator=like, device=device) / 4
    return HeadTransform(angles.cos(), angles.sin(), *(weights.to(dtype) if norms else (None, None)), EPS)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.dtype])


def workspace_for(arguments: dict, num_parts: int | None = None) -> SplitWorkspace:
    """As small as it may be, and what lies in it is no number."""
    query = arguments["query"]
    workspace = SplitWorkspace(*query.shape, query.device, num_parts)
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


def plan_for(arguments: dict) -> SharePlan:
    """As small as it may be, and not made yet."""
    key, cache = arguments["key_new"], arguments["k_cache_layer"]
    group = arguments["query"].shape[1] // key.shape[1]
    return SharePlan(*key.shape, cache.dtype, key.device, group, cache.shape[2])


def in_shares(max_context_len: int, **arguments: Tensor) -> Tensor:
    """A plan and its attention as one of `PagedAttentionAppend`; nobody has arrived for a next call."""
    plan = plan_for(arguments)
    plan_shares_triton(arguments["context_lens"], arguments["slot_mapping"], plan)
    # Its kernels are launched in order behind the plan's.
    workspace = workspace_for(arguments, len(plan.row_of))
    out = paged_attention_append_shares_triton(**arguments, workspace=workspace, plan=plan)
    assert not workspace.arrived.any()
    return out


def assert_same_plan(plan: SharePlan, plain: SharePlan) -> None:
    """But for what lies behind the last share in use."""
    used = plain.row_of >= 0
    assert torch.equal(plan.row_of, plain.row_of.to(plan.row_of.device))
    for name in ("slot_of", "first_of", "end_of"):
        assert getattr(plan, name)[used].tolist() == getattr(plain, name)[used].tolist(), name
    for name in ("first_share", "num_shares"):
        assert getattr(plan, name).tolist() == getattr(plain, name).tolist(), name


KERNELS = {
    "triton": paged_attention_append_triton,
    "in 3": split_in(3),
    "in shares": in_shares,
}
PLAIN = pytest.param(paged_attention_append_plain, id="plain")
TRITON = [pytest.param(attention, id=name, marks=needs_triton) for name, attention in KERNELS.items()]
each_form = pytest.mark.parametrize("attention", [PLAIN, *TRITON])


def dense_attention(case: Case) -> Tensor:
    """The definition, a request at a time, in float64: [B, H, D]. A row that pads sees itself alone."""
    rows = []
    for b, query in enumerate(case.arguments["query"].double()):  # [H, D]
        keys = torch.cat([case.keys[b], case.arguments["key_new"][b : b + 1]]).double()  # [T + 1, G, D]
        values = torch.cat([case.values[b], case.arguments["value_new"][b : b + 1]]).double()
        keys, values = (each.repeat_interleave(len(query) // each.shape[1], 1) for each in (keys, values))
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


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The same values, laid out in memory in another order of dimensions."""
    back = torch.tensor(order).argsort().tolist()
    return tensor.permute(*order).contiguous().permute(*back)


def with_rows(case: Case, rows: list[int], B: int) -> Case:
    """The case with these of its rows, and pads behind them."""
    pads = B - len(rows)
    nobody = len(case.arguments["context_lens"]) - 1
    slots = case.arguments["slot_mapping"]
    mapping = torch.cat([slots[rows], torch.full((pads,), nobody, device=slots.device)])
    return case._replace(
        arguments=case.arguments | {"slot_mapping": mapping},
        keys=[*(case.keys[b] for b in rows), *[case.keys[0][:0]] * pads],
        values=[*(case.values[b] for b in rows), *[case.values[0][:0]] * pads],
    )


def without_slots(case: Case) -> Case:
    """The same for attention that stores nothing: each row has its table and its length at hand."""
    arguments = dict(case.arguments)
    mapping = arguments.pop("slot_mapping")
    changed = {name: arguments[name][mapping] for name in ("block_table", "context_lens")}
    changed["context_lens"] = changed["context_lens"].clamp(min=0)
    return case._replace(arguments=arguments | changed)


def far_case(device: str) -> Case:
    """Trap 11. A block begins at number 2**32, which an index of 32 bits takes for 0, others beyond it, and
    their table has near ones between. Memory is only reserved: of 8.6 GB a few pages are touched."""
    H, D, block_size, far = 2, 64, 64, 2**18
    near = make_case([150, 20, 64], H, D, block_size, torch.float16, device, num_layers=1)
    try:
        pool = torch.empty(far + 4, 2, H, block_size, D, dtype=torch.float16, device=device)
    except RuntimeError as error:  # out of memory on a GPU is one, too
        pytest.skip(f"8.6 GB could not be reserved: {error}")
    assert pool.stride(0) * far == 2**32
    pool[FAR_BLOCKS] = torch.nan  # the first are what an index of 32 bits would find
    k_layer, v_layer = pool.unbind(1)
    table, mapping = near.arguments["block_table"], near.arguments["slot_mapping"]
    rows = zip(mapping, near.context_lens, strict=True)
    blocks = torch.cat([table[slot, : n // block_size + 1] for slot, n in rows]).long()
    moved = torch.zeros(len(near.k_pool[0]) + 1, dtype=torch.int64, device=device)  # and one that is none
    moved[blocks] = moved.new_tensor([far + 2, 1, far + 3, far, 0, far + 1])
    k_layer[moved[blocks]], v_layer[moved[blocks]] = near.k_pool[0, blocks], near.v_pool[0, blocks]
    table = moved[table.long()].int()
    arguments = {**near.arguments, "k_cache_layer": k_layer, "v_cache_layer": v_layer, "block_table": table}
    places = [(b, int(moved[block]), pos) for b, block, pos in near.places]
    return near._replace(arguments=arguments, k_pool=k_layer, v_pool=v_layer, places=places)


def assert_far_places_are_found(attention: Callable, device: str) -> None:
    case = far_case(device)
    layers = {"key_new": case.k_pool, "value_new": case.v_pool}
    expected = {name: bits(layer[FAR_BLOCKS]).clone() for name, layer in layers.items()}
    for b, block, pos in case.places:
        for name in layers:
            expected[name][FAR_BLOCKS.index(block), :, pos] = bits(case.arguments[name][b])
    out = attention(**case.arguments)
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), dense_attention(case), rtol=tolerance, atol=tolerance)
    for name, layer in layers.items():
        assert torch.equal(bits(layer[FAR_BLOCKS]), expected[name])
