"""A step's operators, captured as they run and replayed without the Python around them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from labkit.engine.sampling import Draws
from labkit.engine.step.device import DeviceStep
from labkit.watch.launches import kernels_as_launches
from labkit.watch.operators import OperatorMode, tensors_of


class CapturedLaunch(NamedTuple):
    """A kernel or operator that was launched, with the very tensors that it was given and those it made."""

    name: str
    function: Callable
    args: tuple
    kwargs: dict
    outputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> list:
        """All arguments, flattened: tensors, numbers and the like."""
        return tree_leaves((self.args, self.kwargs))

    def run(self) -> tuple[Tensor, ...]:
        """Launch it once more, with the same arguments; the tensors that it gives back this time."""
        return tensors_of(self.function(*self.args, **self.kwargs))


class LaunchRecorder(OperatorMode):
    """Remembers every operator that runs inside its `with`, in order, in `launches`.

    The operators do their work while they are remembered.
    """

    watch_points = ("remember",)

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[CapturedLaunch] = []

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Remember an operator; the profiler's are none."""
        if func.namespace != "profiler":
            self.remember(f"{func.namespace}.{func.overloadpacket.__name__}", func, args, kwargs, out)

    def on_kernel(self, name: str, function: Callable, args: tuple, kwargs: dict, out: object) -> None:
        """Remember a function from `as_kernel` as one launch."""
        # A kernel finds lengths on the device, so the numbers that its plain twin takes do not count.
        name = getattr(function, "__name__", name)
        self.remember(name, lambda *_: function(*args, **kwargs), tensors_of(args), {}, out)

    def remember(self, name: str, function: Callable, args: tuple, kwargs: dict, out: object) -> None:
        """Add a launch of `function`, which replaying calls again."""
        self.launches.append(CapturedLaunch(name, function, args, kwargs, tensors_of(out)))


class ToyGraph(LaunchRecorder):
    """Remembers every operator that runs inside its `with`, and its tensors; `replay` runs them again.

    As in a CUDA graph, a replay asks no Python of the step what to do. The operators, the shapes, the numbers
    and the addresses are those of the capture; only what lies at the addresses may be new. Unlike a CUDA
    graph, the toy does the work while it captures.
    """

    @torch.inference_mode()
    def replay(self) -> None:
        """Run all that was remembered once more, in order, with results at the addresses of the capture."""
        for launch in self.launches:
            for remembered, new in zip(launch.outputs, launch.run(), strict=True):
                if remembered.data_ptr() != new.data_ptr():  # neither a view nor in place
                    remembered.copy_(new)  # to where the next operator looks for it


def capture(device_step: DeviceStep, batch_size: int, is_greedy: bool) -> tuple[ToyGraph, Tensor]:
    """Capture a step of `batch_size` requests: the graph, and the tensor [B] that its tokens lie in.

    The slots that are mapped advance, as in any step. Attention is remembered as one launch, as on a GPU, and
    not by what its plain twin does.
    """
    graph = ToyGraph()
    return graph, recorded_step(device_step, batch_size, is_greedy, graph)


def recorded_step(
    device_step: DeviceStep, batch_size: int, is_greedy: bool, recorder: LaunchRecorder
) -> Tensor:
    """Run a step as `capture` does, and let `recorder` remember it. Returns the step's tokens [B]."""
    with torch.inference_mode(), kernels_as_launches(device_step, recorder), recorder:
        return device_step(batch_size, longest_possible(device_step), Draws(is_greedy))


def longest_possible(device_step: DeviceStep) -> int:
    """The most tokens that a block table has room for, which plain attention takes as the longest context."""
    return device_step.slots.block_tables.shape[2] * device_step.attention.kv_manager.block_size
