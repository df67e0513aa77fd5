"""The checks before a launch: what fits passes in silence, what does not is named, with what it should be."""

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

REFUSED = {
    "a wrong size": ({"shape": ("B", 5, 4)}, r"x has shape \[2, 3, 4\], expected \[B, 5, 4\]"),
    "another dtype": (
        {"shape": (2, 3, 4), "dtype": torch.int32},
        r"x is torch.float32, expected torch.int32",
    ),
    "another device": (
        {"shape": (2, 3, 4), "device": torch.device("meta")},
        r"x is on cpu, expected meta",
    ),
}


def test_what_fits_passes():
    check_tensor("x", X, shape=("B", "B", 4))  # a name used twice asks for nothing
    contract = {"dtype": torch.float32, "device": torch.device("cpu"), "last_stride_is_1": True}
    check_tensor("x", X, shape=(2, 3, 4), **contract)
    check_tensor("x", torch.zeros(4, 6, 4)[::2, ::2], shape=(2, 3, 4), last_stride_is_1=True)


@pytest.mark.parametrize("contract, message", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_named_with_what_it_should_be(contract: dict, message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        check_tensor("x", X, **contract)


@pytest.mark.parametrize("gapped", [X[..., ::2], X[0, 0].expand(2, 4).t()], ids=["steps", "repeated"])
def test_a_last_dimension_with_gaps_is_refused_only_where_it_matters(gapped: Tensor):
    check_tensor("x", gapped, shape=tuple(gapped.shape))
    with pytest.raises(ValueError, match=r"^x has strides \(.*, expected the last dimension to be contig"):
        check_tensor("x", gapped, shape=tuple(gapped.shape), last_stride_is_1=True)


# --- values ----------------------------------------------------------------------------------------


@pytest.fixture
def debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DEBUG", True)


def test_indices_from_0_to_below_the_limit_pass(debug: None):
    check_range("i", torch.tensor([4, 0, 2]), 5)
    check_range("i", torch.tensor([], dtype=torch.int32), 0)


@pytest.mark.parametrize("indices", [[0, 5], [-1, 4]])
def test_an_index_out_of_range_is_refused_with_the_range(debug: None, indices: list[int]):
    low, high = indices
    with pytest.raises(ValueError, match=rf"^i has values from {low} to {high}, outside of 0 to 4$"):
        check_range("i", torch.tensor(indices), 5)


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
