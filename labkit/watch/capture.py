"""A step's operators, captured as they run and replayed without the Python around them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from labkit.engine import InferenceEngine
from labkit.engine.sampling import Draws
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.watch.launches import device_step_of, kernels_as_launches
from labkit.watch.operators import OperatorMode, tensors_of
from labkit.watch.replaced import replaced


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


def capture(
    device_step: DeviceStep, batch_size: int, is_greedy: bool, *, as_launches: bool = True
) -> tuple[ToyGraph, Tensor]:
    """Capture a step of `batch_size` requests: the graph, and the tensor [B] that its tokens lie in.

    The slots that are mapped advance, as in any step.

    as_launches: attention is remembered as one launch, as on a GPU, and not by what its plain twin does.
    """
    graph = ToyGraph()
    return graph, recorded_step(device_step, batch_size, is_greedy, graph, as_launches=as_launches)


def recorded_step(
    device_step: DeviceStep,
    batch_size: int,
    is_greedy: bool,
    recorder: LaunchRecorder,
    *,
    as_launches: bool = True,
) -> Tensor:
    """Run a step as `capture` does, and let `recorder` remember it. Returns the step's tokens [B]."""
    kernels = kernels_as_launches(device_step, recorder) if as_launches else nullcontext()
    with torch.inference_mode(), kernels, recorder:
        return device_step(batch_size, longest_possible(device_step), Draws(is_greedy))


def longest_possible(device_step: DeviceStep) -> int:
    """The most tokens that a block table has room for, which plain attention takes as the longest context."""
    return device_step.slots.block_tables.shape[2] * device_step.attention.kv_manager.block_size


def captured_steps(engine: InferenceEngine, num_steps: int, bucket: int | None = None) -> list[ToyGraph]:
    """Run `num_steps` steps of the engine, and capture each: all that makes a token from the last one.

    With state on the device that is the `DeviceStep`; on lower rungs it begins with Python's lists.
    bucket: the number of rows that a batch is padded to, where there is a `DeviceStep`.
    """
    step = engine.decode_step
    graphs: list[ToyGraph] = []
    if isinstance(step, ResidentDecodeStep):
        capturing = capturing_device_steps(step, device_step_of(engine), bucket, graphs)
    else:
        capturing = capturing_host_steps(step, graphs)
    with capturing:
        for _ in range(num_steps):
            engine.step()
    return graphs


def capturing_device_steps(
    step: ResidentDecodeStep, device_step: DeviceStep, bucket: int | None, graphs: list[ToyGraph]
) -> AbstractContextManager:
    """Inside the block, each launch of the device's step is captured and added to `graphs`."""

    def wrapper(_: Callable) -> Callable:
        def launch(batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
            graph, token_ids = capture(device_step, bucket or batch_size, is_greedy)
            graphs.append(graph)
            return token_ids[:batch_size]

        return launch

    return replaced(step, "device_step", wrapper)


def capturing_host_steps(step: DecodeStep, graphs: list[ToyGraph]) -> AbstractContextManager:
    """Inside the block, each step that begins on the host is captured whole and added to `graphs`."""

    def wrapper(inner: Callable) -> Callable:
        def next_tokens(*args: object) -> object:
            with kernels_as_launches(step, graph := ToyGraph()), graph:
                token_ids = inner(*args)
            graphs.append(graph)
            return token_ids

        return next_tokens

    return replaced(step, "next_tokens", wrapper)
