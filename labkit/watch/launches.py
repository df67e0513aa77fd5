"""What a decode step on the device launches: how many numbers each kernel touches; and all of it captured, to
be replayed without the Python around it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from labkit.engine import InferenceEngine
from labkit.engine.sampling import Draws
from labkit.engine.step import build
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import FusedDeviceStep, FusedKernels
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.lanes import LanedDeviceStep
from labkit.watch.operators import OperatorMode, storage, tensors_of
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode

# Operators under the names that they are called by, whichever of the two a version of PyTorch dispatches.
OPERATORS = {"addmm": "linear", "mm": "linear", "native_layer_norm": "layer_norm", "_to_copy": "to"}
KERNELS_OF = {"greedy_advance": 2}  # of all others, one
NUM_READ = {"attention": 3}  # how many of a kernel's arguments count as read; the cache does not


class Launch(NamedTuple):
    """A launch, and how many numbers it reads and writes; those in the KV cache are left out."""

    name: str
    weights: int  # numbers of the model that it reads
    reads: int  # other numbers that it reads, which an earlier kernel has written
    writes: int
    kernels: int = 1


class LaunchLog(OperatorMode):
    """Remembers each operator that makes or changes memory, which is what a kernel is launched for. A view
    of memory that is there already needs none."""

    def __init__(self, weights: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.weights = {storage(weight) for weight in weights}
        self.launches: list[Launch] = []

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Remember an operator of PyTorch's own unless it only makes a view or reserves memory."""
        name = func.overloadpacket.__name__
        if name.startswith("empty") or func.namespace != "aten":
            return
        before = {storage(tensor) for tensor in tensors_of((args, kwargs))}
        made = [tensor for tensor in tensors_of(out) if storage(tensor) not in before]
        if made or name.endswith("_"):
            self.remember(OPERATORS.get(name, name), (args, kwargs), out)

    def on_kernel(self, name: str, function: Callable, args: tuple, kwargs: dict, out: object) -> None:
        """Remember a function from `as_kernel` as one launch, of as many kernels as it says."""
        kernels = getattr(function, "num_kernels", KERNELS_OF.get(name, 1))
        self.remember(
            f"{name}, GELU" if kwargs.get("gelu") else name, args[: NUM_READ.get(name)], out, kernels
        )

    def remember(self, name: str, inputs: object, out: object, kernels: int = 1) -> None:
        """Add a launch, counting the numbers in the tensors of `inputs` and `out`."""
        tensors, made = tensors_of(inputs), tensors_of(out)
        weights = [tensor for tensor in tensors if storage(tensor) in self.weights]
        numbers = sum(tensor.numel() for tensor in tensors) - (known := sum(w.numel() for w in weights))
        self.launches.append(Launch(name, known, numbers, sum(tensor.numel() for tensor in made), kernels))


def device_step_of(engine: InferenceEngine) -> DeviceStep:
    """The `DeviceStep` that the engine launches kernel by kernel, or has graphs of.

    Raises ValueError for an engine that has no such step (up to rung 05), or another in its place.
    """
    device_step = build.device_step_of(engine.decode_step)
    if not isinstance(device_step, DeviceStep):
        raise ValueError("this engine has no step on the device; take rung 06 or above")
    return device_step


@contextmanager
def kernels_as_launches(step: DecodeStep | DeviceStep, mode: OperatorMode) -> Iterator[None]:
    """Inside the block, the mode is told of a step's attention, of the write behind it, of fused kernels and
    of all layers in one kernel as one launch each, as they are on a GPU, and not of what their plain twins
    do."""
    owner = step.attention if isinstance(step, DeviceStep) else step
    with ExitStack() as stack:
        for name in ("attention", "kv_append"):
            if callable(vars(owner).get(name)):
                stack.enter_context(replaced(owner, name, partial(mode.as_kernel, name)))
        if isinstance(step, FusedDeviceStep):
            stack.enter_context(
                replaced(step, "kernels", lambda k: FusedKernels(*map(mode.as_kernel, k._fields, k)))
            )
        if isinstance(step, LanedDeviceStep) and step.few is not None:
            stack.enter_context(replaced(step, "few", partial(mode.as_kernel, "all layers")))
        yield


def log_step(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> LaunchLog:
    """Log one greedy decode step of these prompts, kernel by kernel, even if the engine replays graphs."""
    step = device_step_of(engine)
    log = LaunchLog(tensors_of((list(step.network.parameters()), *vars(step).values())))

    def launch(batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        with kernels_as_launches(step, log), torch.inference_mode(), log:
            return step(batch_size, max_context_len, draws)

    with steady_decode(engine, prompts), replaced(engine.decode_step, "device_step", lambda _: launch):
        engine.step()
    return log


def layer_of(launches: Sequence[Launch]) -> list[Launch]:
    """The launches of the first layer, from those of a step of at least two layers."""
    names = [launch.name for launch in launches]
    attention = [i for i, name in enumerate(names) if name == "attention"]
    first = next(i for i, name in enumerate(names) if name in ("layer_norm", "norm_linear"))
    return list(launches[first : first + attention[1] - attention[0]])


def count_kernels(launches: Sequence[Launch]) -> int:
    """How many kernels the launches are in all; a launch can be of two."""
    return sum(launch.kernels for launch in launches)


# --- launches with their tensors, captured and replayed ----------------------------------------------------


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
