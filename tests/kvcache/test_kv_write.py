"""The writers: which path each takes, that all paths leave the same bytes, and what the host makes for each.

Where no kernel is compiled, they use the plain twins; here also the kernels, in Triton's interpreter.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from labkit.kernels import checks, triton_status
from labkit.kernels.triton_runtime import TritonStatus
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite, kv_write
from labkit.watch import OperatorCounter

# Kernels run in the interpreter on CPU tensors, or compiled on the GPU's.
KERNEL_DEVICE = torch.device("cuda" if triton_status().mode == "native" else "cpu")
WRITERS = [IndexedWrite, FullBatchWrite, IdentityPosWrite]

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
writers = pytest.mark.parametrize("writer", WRITERS)


class Batch(NamedTuple):
    """A batch of B requests, and which of them are written, to which block and slot."""

    B: int
    batch_idx: Sequence[int]
    block_idx: Sequence[int]
    pos: Sequence[int]


# And the path each of WRITERS takes.
BATCHES = {
    "one request": (Batch(1, [0], [4], [2]), ("indexed", "full_batch", "full_batch")),
    "equal positions": (Batch(3, [0, 1, 2], [4, 0, 2], [3] * 3), ("indexed", "full_batch", "full_batch")),
    "only the last differs": (
        Batch(3, range(3), [4, 0, 2], [1, 1, 2]),
        ("indexed", "generic", "identity_pos"),
    ),
    "a subset": (Batch(4, [0, 2, 3], [4, 0, 2], [3, 0, 1]), ("indexed", "generic", "generic")),
    "a subset at equal positions": (Batch(4, [1, 3], [4, 0], [2, 2]), ("indexed", "generic", "generic")),
}
INDEX_TENSORS = {"indexed": 3, "full_batch": 1, "generic": 3, "identity_pos": 2}
batches = pytest.mark.parametrize("batch, paths", BATCHES.values(), ids=BATCHES)


@pytest.fixture(params=["plain", pytest.param("triton", marks=needs_triton)])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the twins the writers use, whatever this machine's choice is."""
    monkeypatch.setattr(kv_write, "runs_triton", lambda device: request.param == "triton")
    return request.param


def make_tensors(batch: Batch, device: torch.device = KERNEL_DEVICE) -> list[Tensor]:
    """Two caches [N, H, block_size, D] full of NaN, and keys and values [B, H, D] that are views."""
    caches = [torch.full((6, 2, 4, 5), torch.nan, device=device) for _ in range(2)]
    numbers = torch.arange(batch.B * 3 * 2 * 5, device=device).float().view(batch.B, 3, 2, 5)
    return [*caches, *numbers.unbind(1)[1:]]


def write(writer: type, batch: Batch, tensors: list[Tensor]) -> str:
    return writer(tensors[0].device).write(*tensors, batch.batch_idx, batch.block_idx, batch.pos)


def expected_caches(batch: Batch) -> list[Tensor]:
    """By one assignment for each token and head."""
    *caches, key_new, value_new = make_tensors(batch)
    for cache, new in zip(caches, (key_new, value_new), strict=True):
        for b, block, slot in zip(batch.batch_idx, batch.block_idx, batch.pos, strict=True):
            for h in range(2):
                cache[block, h, slot] = new[b, h]
    return caches


def assert_equal_caches(tensors: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(tensors[:2], expected, rtol=0, atol=0, equal_nan=True)


# --- which path ------------------------------------------------------------------------------------


@batches
def test_a_path_is_said_leaves_the_same_bytes_and_makes_the_index_tensors_it_needs(
    kernels: str, batch: Batch, paths: tuple[str, ...]
):
    """Trap 1: a run that does not count its paths cannot tell whether it entered the one it is about.
    Trap 3: on a GPU each index tensor is a copy that the host waits for."""
    for writer, path in zip(WRITERS, paths, strict=True):
        tensors = make_tensors(batch)
        with OperatorCounter() as counter:
            assert write(writer, batch, tensors) == path
        assert (path, counter.index_tensors) == (path, INDEX_TENSORS[path])
        assert_equal_caches(tensors, expected_caches(batch))


@st.composite
def any_batches(draw: st.DrawFn) -> Batch:
    """Requests in rising order, each with a block of its own, as the manager hands them over."""
    B = draw(st.integers(1, 6))
    batch_idx = draw(st.lists(st.integers(0, B - 1), min_size=1, unique=True).map(sorted) | st.just(range(B)))
    block_idx = draw(st.permutations(range(6)))[: len(batch_idx)]
    slots = st.lists(st.integers(0, 3), min_size=len(batch_idx), max_size=len(batch_idx))
    equal = st.integers(0, 3).map(lambda slot: [slot] * len(batch_idx))
    return Batch(B, batch_idx, block_idx, draw(slots | equal))


@pytest.mark.slow
@given(any_batches())
def test_any_batch_takes_the_narrowest_path_there_is_and_is_the_same_on_each(batch: Batch):
    whole, equal = len(batch.batch_idx) == batch.B, len(set(batch.pos)) == 1
    narrow = "full_batch" if whole and equal else "generic"
    narrower = "identity_pos" if whole and not equal else narrow
    for writer, path in zip(WRITERS, ("indexed", narrow, narrower), strict=True):
        tensors = make_tensors(batch)
        assert write(writer, batch, tensors) == path
        assert_equal_caches(tensors, expected_caches(batch))


@writers
def test_a_batch_of_nobody_is_written_and_changes_nothing(kernels: str, writer: type):
    tensors = make_tensors(batch := Batch(0, [], [], []))
    assert write(writer, batch, tensors) in INDEX_TENSORS
    assert_equal_caches(tensors, expected_caches(batch))


# --- which kernel ----------------------------------------------------------------------------------

PLAIN = {
    "indexed": "kv_append_plain",
    "generic": "kv_append_plain",
    "full_batch": "kv_append_full_batch_plain",
    "identity_pos": "kv_append_identity_pos_plain",
}
TRITON = {
    "indexed": "kv_append_plain",  # what rungs 00 to 02 compare with
    "generic": "kv_append_triton",
    "full_batch": "kv_append_triton_full_batch",
    "identity_pos": "kv_append_triton_identity_pos",
}


@batches
def test_a_path_is_one_call_of_its_own_kernel(
    kernels: str, batch: Batch, paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    called = []
    for name in {*PLAIN.values(), *TRITON.values()}:
        monkeypatch.setattr(kv_write, name, lambda *_, name=name: called.append(name))
    for writer in WRITERS:
        write(writer, batch, make_tensors(batch))
    names = TRITON if kernels == "triton" else PLAIN
    assert called == [names[path] for path in paths]


@pytest.mark.parametrize(
    "mode, device, runs",
    [
        ("native", "cuda", True),
        ("native", "cpu", False),
        ("interpreter", "cuda", False),
    ],
)
def test_kernels_are_used_only_where_they_are_compiled(
    monkeypatch: pytest.MonkeyPatch, mode: str, device: str, runs: bool
):
    """The interpreter is for looking at a kernel, not for serving with it."""
    monkeypatch.setattr(kv_write, "triton_status", lambda: TritonStatus(mode, "a test"))
    assert kv_write.runs_triton(torch.device(device)) is runs


# --- what the host makes ---------------------------------------------------------------------------


def test_an_index_tensor_is_of_32_bits_and_on_the_device():
    tensor = kv_write.index_tensor((3, 1, 2), KERNEL_DEVICE)
    assert (tensor.dtype, tensor.device.type, tensor.tolist()) == (torch.int32, KERNEL_DEVICE.type, [3, 1, 2])


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@batches
def test_on_a_gpu_each_index_tensor_is_a_copy_that_the_host_waits_for(
    batch: Batch, paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """Trap 3, counted by torch itself, which warns of each call that makes the host wait."""
    monkeypatch.setattr(checks, "DEBUG", False)
    for writer, path in zip(WRITERS, paths, strict=True):
        tensors = make_tensors(batch, torch.device("cuda"))
        write(writer, batch, tensors)  # compiled by now
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                write(writer, batch, tensors)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
        assert (path, len(waits)) == (path, INDEX_TENSORS[path])
        assert_equal_caches(tensors, [cache.cuda() for cache in expected_caches(batch)])
