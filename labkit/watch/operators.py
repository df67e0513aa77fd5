"""What is called: operators that PyTorch dispatches, functions that count as a single one, as kernels do on a
GPU, and Python's own functions."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OperatorMode(TorchDispatchMode):
    """A dispatch mode that calls `on_operator` for every operator that runs inside its `with`.

    A call of a function from `as_kernel` counts as one launch: it calls `on_kernel`, and the operators
    inside it do not call `on_operator`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_kernel = False

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self._in_kernel:
            self.on_operator(func, args, kwargs, out)
        return out

    def as_kernel(self, name: str, function: Callable) -> Callable:
        """Wrap a function so that a call of it counts as one launch, whatever operators it dispatches."""

        def launched(*args: object, **kwargs: object) -> object:
            if self._in_kernel:
                return function(*args, **kwargs)
            self._in_kernel = True
            try:
                out = function(*args, **kwargs)
            finally:
                self._in_kernel = False
            self.on_kernel(name, function, args, kwargs, out)
            return out

        return launched

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Called after an operator has run, with its arguments and its result."""

    def on_kernel(self, name: str, function: Callable, args: tuple, kwargs: dict, out: object) -> None:
        """Called after a function from `as_kernel` has run, with its arguments and its result."""


class OperatorCounter(OperatorMode):
    """Counts what PyTorch dispatches, and the integer tensors among it that come from Python numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.index_tensors = 0

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Count an operator, and the integer tensors that it makes from Python numbers."""
        self.operators += 1
        if func is torch.ops.aten.lift_fresh.default:  # how torch.tensor(...) ends
            self.index_tensors += sum(made.dtype in (torch.int32, torch.int64) for made in tensors_of(out))


def tensors_of(tree: object) -> tuple[Tensor, ...]:
    """The tensors among whatever is nested in `tree`, in order."""
    return tuple(leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def storage(tensor: Tensor) -> int:
    """The address of the memory that a tensor lies in; a view has that of its base."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def profiled_by(on_event: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Inside the block, `on_event` is called at every Python call and return, as by `sys.setprofile`; a
    profiler that ran before goes on after it."""
    previous: Any = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        if previous is None or callable(previous):
            sys.setprofile(previous)
        else:
            previous.enable()  # cProfile's, which is no function
