"""The checks before a launch: which tensors pass, and when indices are looked at."""

import runpy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.kernels import checks
from labkit.kernels.checks import check_range, check_tensor

X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize("gapped", [X[..., ::2], X[0, 0].expand(2, 4).t()], ids=["steps", "repeated"])
def test_a_last_dimension_with_gaps_is_refused_only_where_it_matters(gapped: Tensor):
    check_tensor("x", gapped, shape=tuple(gapped.shape))
    with pytest.raises(ValueError, match=r"^x has strides \(.*, expected the last dimension to be contig"):
        check_tensor("x", gapped, shape=tuple(gapped.shape), last_stride_is_1=True)


# --- values ----------------------------------------------------------------------------------------


@pytest.fixture
def debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DEBUG", True)


def test_a_name_leaves_a_size_free_and_no_index_is_out_of_range(debug: None):
    check_tensor("x", X, shape=("B", "B", 4))  # a name used twice asks for nothing
    check_range("i", torch.tensor([], dtype=torch.int32), 0)


@pytest.mark.parametrize("is_capturing", [True, False])
def test_while_a_graph_is_captured_no_value_is_looked_at(
    debug: None, monkeypatch: pytest.MonkeyPatch, is_capturing: bool
):
    """Indices on a GPU that is none: the look itself fails, as it would fail a capture."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    with FakeTensorMode():
        indices = torch.empty(2, dtype=torch.int64, device="cuda")
        looks = pytest.raises(DataDependentOutputException) if not is_capturing else nullcontext()
        with looks:
            check_range("i", indices, 5)


def test_indices_on_the_cpu_are_looked_at_whatever_the_gpu_does(debug: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match=r"^i has values from 5 to 5"):
        check_range("i", torch.tensor([5]), 5)


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was run")


def test_without_debug_no_value_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    """Trap 3: on a GPU a look at one number makes the host wait for all that runs."""
    monkeypatch.setattr(checks, "DEBUG", False)
    indices = torch.tensor([-1, 99])
    with Nothing():
        check_range("i", indices, 5)
        check_tensor("i", indices, shape=(2,), dtype=torch.int64, last_stride_is_1=True)


@pytest.mark.parametrize("value, on", [("1", True), ("0", False), (None, False)])
def test_labkit_debug_turns_it_on(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool):
    monkeypatch.delenv("LABKIT_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("LABKIT_DEBUG", value)
    assert runpy.run_path(checks.__file__)["DEBUG"] is on
