"""Writing new tokens into the pool: three paths, plain and in Triton, against a loop over tokens and heads.

Pools and new numbers are random bits, so NaN of any kind too, and whole pools are compared bit by bit:
whatever is written beside its slot, or changed on its way, is found out.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from attention_append_cases import BITS, bits, permuted
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused, assert_refused, unchanged
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton_marks import KERNEL_DEVICE, assert_host_does_not_wait, devices, dtypes, needs_triton

from labkit.kernels import (
    checks,
    kv_append_full_batch_plain,
    kv_append_identity_pos_plain,
    kv_append_plain,
    kv_append_triton,
    kv_append_triton_full_batch,
    kv_append_triton_identity_pos,
)

LAYER = 1  # of the three that a pool has here
INDEX_TENSORS = {
    "generic": ("batch_idx", "block_idx", "pos"),
    "full_batch": ("block_idx",),
    "identity_pos": ("block_idx", "pos"),
}

PLAIN = {
    "generic": kv_append_plain,
    "full_batch": kv_append_full_batch_plain,
    "identity_pos": kv_append_identity_pos_plain,
}
TRITON = {
    "generic": kv_append_triton,
    "full_batch": kv_append_triton_full_batch,
    "identity_pos": kv_append_triton_identity_pos,
}
ALL = [
    *(pytest.param(path, append, id=f"{path}-plain") for path, append in PLAIN.items()),
    *(pytest.param(path, append, id=f"{path}-triton", marks=needs_triton) for path, append in TRITON.items()),
]
FULL_BATCH = ALL[1::3]
appends = pytest.mark.parametrize("path, append", ALL)


class Place(NamedTuple):
    """Where one token goes."""

    request: int
    block: int
    slot: int


class Case(NamedTuple):
    """The arguments of one call, by name; the pools they are a layer of; and where tokens have to arrive."""

    arguments: dict[str, Tensor | int]
    k_pool: Tensor  # [L, N, H, block_size, D]
    v_pool: Tensor
    places: list[Place]


def any_bits(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    info = torch.iinfo(BITS[dtype])
    return torch.randint(
        info.min, info.max + 1, shape, generator=generator, dtype=BITS[dtype], device=generator.device
    ).view(dtype)


def make_places(path: str, B: int, N: int, block_size: int) -> list[Place]:
    """Blocks in any order. Slots: the first of a block, then the last, and on downwards; for full_batch
    always the last. For generic the requests are all but one, in any order."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randperm(N, generator=generator)[:B].tolist()
    slots = [block_size - 1 if path == "full_batch" else -b % block_size for b in range(B)]
    places = [Place(*place) for place in zip(range(B), blocks, slots, strict=True)]
    if path == "generic" and B > 1:
        return [places[b] for b in torch.randperm(B, generator=generator)[1:]]
    return places


def make_case(
    path: str,
    places: list[Place] | None = None,
    B: int = 4,
    H: int = 2,
    D: int = 16,
    block_size: int = 4,
    N: int = 7,
    dtype: torch.dtype = torch.float32,
    device: str = KERNEL_DEVICE,
) -> Case:
    """One layer of a larger pool, and keys and values as the model makes them: views of one tensor."""
    generator = torch.Generator(device).manual_seed(0)
    places = make_places(path, B, N, block_size) if places is None else places
    k_pool, v_pool = (any_bits(generator, dtype, 3, N, H, block_size, D) for _ in range(2))
    qkv = any_bits(generator, dtype, B, 1, 3, H, D).permute(2, 0, 3, 1, 4)  # [3, B, H, T, D]
    _, key_new, value_new = qkv[:, :, :, 0]
    arguments = {
        "k_cache_layer": k_pool[LAYER],
        "v_cache_layer": v_pool[LAYER],
        "key_new": key_new,
        "value_new": value_new,
    }
    return Case(arguments | indices_of(path, places, torch.int32, device), k_pool, v_pool, places)


def indices_of(path: str, places: list[Place], dtype: torch.dtype, device: str) -> dict[str, Tensor | int]:
    """What each path is told of the places."""
    batch_idx, block_idx, pos = (
        torch.tensor(column, dtype=dtype, device=device)
        for column in ([place[i] for place in places] for i in range(3))
    )
    indices = {"batch_idx": batch_idx, "block_idx": block_idx, "pos": pos}
    if path != "generic":
        assert indices.pop("batch_idx").tolist() == list(range(len(places)))
    if path == "full_batch":
        (indices["pos"],) = set(pos.tolist())
    return indices


def assert_each_token_is_in_its_slot(append: Callable, case: Case) -> None:
    """And that nothing else has changed, in the pools or in the arguments."""
    key_new, value_new = case.arguments["key_new"], case.arguments["value_new"]
    written = []
    for pool, new in ((case.k_pool, key_new), (case.v_pool, value_new)):
        expected = bits(pool).clone()
        for request, block, slot in case.places:
            for h in range(new.shape[1]):
                expected[LAYER, block, h, slot] = bits(new)[request, h]
        written.append((pool, expected))
    with unchanged(case.arguments, but=("k_cache_layer", "v_cache_layer")):
        append(**case.arguments)
    for pool, expected in written:
        assert torch.equal(bits(pool), expected)


# --- any sizes, dtypes and layouts -----------------------------------------------------------------

ORDERS = [(0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (2, 3, 1, 0, 4)]  # of the pool's dimensions in memory; D is last


@st.composite
def cases(draw: st.DrawFn, path: str) -> Case:
    """Any sizes and any places, no two of them the same; each argument laid out in its own way."""
    N, block_size = draw(st.integers(1, 50)), draw(st.sampled_from([1, 3, 4, 6, 64]))
    sizes = {
        "H": draw(st.integers(1, 4)),
        "D": draw(st.integers(1, 40) | st.sampled_from([64, 80, 160, 257])),
    }
    blocks, slots = st.integers(0, N - 1), st.integers(0, block_size - 1)
    if path == "full_batch":
        slot = draw(slots)
        targets = [(block, slot) for block in draw(st.lists(blocks, min_size=1, max_size=5, unique=True))]
    else:
        least = int(path != "generic")  # which may have nobody to write
        targets = draw(st.lists(st.tuples(blocks, slots), min_size=least, max_size=5, unique=True))
    B = len(targets)
    requests = list(range(B))
    if path == "generic":
        B += draw(st.integers(int(B == 0), 2))
        requests = draw(st.permutations(range(B)))[: len(targets)]
    places = [Place(request, *target) for request, target in zip(requests, targets, strict=True)]
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    case = make_case(path, places, B=B, N=N, block_size=block_size, dtype=dtype, **sizes)
    order = draw(st.sampled_from(ORDERS))
    k_pool, v_pool = (permuted(pool, order) for pool in (case.k_pool, case.v_pool))
    arguments = case.arguments | {"k_cache_layer": k_pool[LAYER], "v_cache_layer": v_pool[LAYER]}
    for name in ("key_new", "value_new"):
        if draw(st.booleans()):
            arguments[name] = permuted(arguments[name], (1, 0, 2))
    for name in INDEX_TENSORS[path]:
        indices = arguments[name].to(draw(st.sampled_from([torch.int32, torch.int64])))
        around = torch.full_like(indices[:1], 10**6)
        arguments[name] = torch.cat([around, indices, around])[1:-1]  # part of a longer tensor
    return Case(arguments, k_pool, v_pool, places)


@pytest.mark.slow
@appends
@settings(max_examples=30)
@given(data=st.data())
def test_each_token_is_in_its_slot_and_nothing_else_changed(path: str, append: Callable, data: st.DataObject):
    assert_each_token_is_in_its_slot(append, data.draw(cases(path)))


@devices
@appends
def test_places_more_than_2_to_the_31_numbers_into_the_pool_are_found(
    path: str, append: Callable, device: str
):
    """Trap 11. Block 2**18 begins at number 2**32, which an index of 32 bits takes for 0, and block 2**17 at
    2**31. Memory is only reserved: of 4.3 GB a few pages are touched."""
    H, block_size, D, far, middle = 2, 64, 64, 2**18, 2**17
    try:
        pool = torch.empty(far + 1, 2, H, block_size, D, dtype=torch.uint8, device=device)
    except RuntimeError as error:  # out of memory on a GPU is one, too
        pytest.skip(f"4.3 GB could not be reserved: {error}")
    k_layer, v_layer = pool.unbind(1)
    assert (k_layer.stride(0) * far, k_layer.stride(0) * middle) == (2**32, 2**31)
    looked_at = [0, 1, middle, far - 1, far]
    pool[looked_at] = 0
    case = make_case(
        path, [Place(0, far, 5)], B=1, H=H, D=D, block_size=block_size, dtype=torch.uint8, device=device
    )
    append(**case.arguments | {"k_cache_layer": k_layer, "v_cache_layer": v_layer})
    for layer, name in ((k_layer, "key_new"), (v_layer, "value_new")):
        expected = torch.zeros_like(layer[looked_at])
        expected[looked_at.index(far), :, 5] = case.arguments[name][0]
        assert torch.equal(layer[looked_at], expected)


class NoCopies(TorchDispatchMode):
    """What PyTorch dispatches is no copy of numbers, and no look at one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, aten = func(*args, **(kwargs or {})), torch.ops.aten
        assert func.overloadpacket not in (aten.clone, aten._local_scalar_dense)
        assert func.overloadpacket not in (aten._to_copy, aten.copy_) or out.dtype != torch.float32
        return out


@appends
def test_views_are_written_from_and_to_without_a_copy_and_no_index_is_read(
    path: str, append: Callable, monkeypatch: pytest.MonkeyPatch
):
    """Trap 3: to look at an index, the host would wait for the GPU."""
    monkeypatch.setattr(checks, "DEBUG", False)
    case = make_case(path)
    assert not case.arguments["key_new"].is_contiguous()
    with NoCopies():
        append(**case.arguments)


# --- what the wrappers refuse ----------------------------------------------------------------------


@appends
def test_what_does_not_fit_is_refused_before_anything_is_written(path: str, append: Callable):
    arguments = make_case(path).arguments
    assert_each_wrong_tensor_is_refused(append, arguments)
    turned = permuted(arguments["v_cache_layer"], (0, 2, 1, 3))
    with pytest.raises(ValueError, match=r"^v_cache_layer has strides .*, k_cache_layer"):
        append(**arguments | {"v_cache_layer": turned})


@pytest.mark.parametrize("pos", [-1, 4])
@pytest.mark.parametrize("path, append", FULL_BATCH)
def test_the_one_position_of_a_batch_is_always_checked(path: str, append: Callable, pos: int):
    """It is a number of the host's: to look at it costs nothing."""
    assert_refused(append, make_case(path), {"pos": pos}, f"pos is {pos}, outside of 0 to 3$")


LIMITS = {"batch_idx": 4, "block_idx": 7, "pos": 4}  # of make_case


@appends
def test_in_debug_mode_an_index_out_of_range_is_refused_by_name(
    path: str, append: Callable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checks, "DEBUG", True)
    for name in INDEX_TENSORS[path]:
        for bad in (-1, LIMITS[name]):
            case = make_case(path)
            indices = case.arguments[name].clone()
            indices[1] = bad
            message = f"{name} has values from .*, outside of 0 to {LIMITS[name] - 1}$"
            assert_refused(append, case, {name: indices}, message)
    places = [
        Place(b, b, 3 if path == "full_batch" else b) for b in range(4)
    ]  # the first and the last of all
    assert_each_token_is_in_its_slot(append, make_case(path, places, N=4))


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@dtypes
@appends
@pytest.mark.parametrize("D, block_size", [(64, 64), (64, 16), (80, 6), (128, 64), (160, 64)])
def test_on_a_gpu_each_token_is_in_its_slot_at_full_size(
    path: str, append: Callable, D: int, block_size: int, dtype: torch.dtype
):
    case = make_case(path, B=128, H=12, D=D, block_size=block_size, N=200, dtype=dtype, device="cuda")
    assert_each_token_is_in_its_slot(append, case)


@pytest.mark.cuda
@appends
def test_on_a_gpu_the_host_does_not_wait(path: str, append: Callable):
    case = make_case(path, device="cuda")
    assert_host_does_not_wait(lambda: append(**case.arguments))
