"""The writers: which path each takes, that all paths leave the same bytes, and what the host makes for each.

Where no kernel is compiled, they use the plain twins; here also the kernels, in Triton's interpreter.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_marks import KERNEL_DEVICE, needs_triton

from labkit.kernels.triton_runtime import TritonStatus
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite, kv_write
from labkit.watch import OperatorCounter

WRITERS = [IndexedWrite, FullBatchWrite, IdentityPosWrite]


class Batch(NamedTuple):
    """A batch of B requests, and which of them are written, to which block and slot."""

    B: int
    batch_idx: Sequence[int]
    block_idx: Sequence[int]
    pos: Sequence[int]


INDEX_TENSORS = {"indexed": 3, "full_batch": 1, "generic": 3, "identity_pos": 2}


def make_tensors(batch: Batch) -> list[Tensor]:
    """Two caches [N, H, block_size, D] full of NaN, and keys and values [B, H, D] that are views."""
    caches = [torch.full((6, 2, 4, 5), torch.nan, device=KERNEL_DEVICE) for _ in range(2)]
    numbers = torch.arange(batch.B * 3 * 2 * 5, device=KERNEL_DEVICE).float().view(batch.B, 3, 2, 5)
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


# --- which path, and which kernel ------------------------------------------------------------------

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


@st.composite
def any_batches(draw: st.DrawFn) -> Batch:
    """Requests in rising order, each with a block of its own, as the manager hands them over."""
    B = draw(st.integers(0, 6))
    some = st.lists(st.integers(0, B - 1), unique=True).map(sorted) if B else st.just([])
    batch_idx = draw(some | st.just(range(B)))
    block_idx = draw(st.permutations(range(6)))[: len(batch_idx)]
    slots = st.lists(st.integers(0, 3), min_size=len(batch_idx), max_size=len(batch_idx))
    equal = st.integers(0, 3).map(lambda slot: [slot] * len(batch_idx))
    return Batch(B, batch_idx, block_idx, draw(slots | equal))


@pytest.mark.slow
@pytest.mark.parametrize("names", [PLAIN, pytest.param(TRITON, marks=needs_triton)], ids=["plain", "triton"])
@given(any_batches())
def test_a_batch_takes_the_narrowest_path_by_one_call_of_its_kernel(names: dict[str, str], batch: Batch):
    """Trap 1: a run that does not count its paths cannot tell whether it entered the one it is about.
    Trap 3: on a GPU each index tensor is a copy that the host waits for."""
    whole, equal = len(batch.batch_idx) == batch.B, len(set(batch.pos)) == 1
    narrow = "full_batch" if whole and equal else "generic"
    narrower = "identity_pos" if whole and not equal else narrow
    called = []

    def noted(name: str, kernel: Callable, *arguments: Tensor | int) -> None:
        called.append(name)
        indices = [each for each in arguments[4:] if isinstance(each, Tensor)]
        assert {(each.dtype, each.device.type) for each in indices} == {(torch.int32, KERNEL_DEVICE)}
        kernel(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_write, "runs_triton", lambda device: names is TRITON)
        for name in {*PLAIN.values(), *TRITON.values()}:
            patch.setattr(kv_write, name, partial(noted, name, getattr(kv_write, name)))
        for writer, path in zip(WRITERS, ("indexed", narrow, narrower), strict=True):
            tensors = make_tensors(batch)
            with OperatorCounter() as counter:
                assert write(writer, batch, tensors) == path
            assert (path, counter.index_tensors) == (path, INDEX_TENSORS[path])
            assert called.pop() == names[path] and not called
            assert_equal_caches(tensors, expected_caches(batch))


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
