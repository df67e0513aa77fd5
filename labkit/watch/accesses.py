"""What each program of a Triton kernel reads and writes, number by number, seen in Triton's interpreter."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from labkit.errors import OptionError
from labkit.kernels.triton_runtime import tl, triton, triton_status

READ, WRITE = "read", "write"
WINDOW = 2**44  # bytes from one tensor's made-up address to the next: an offset that runs away stays its own

Program = tuple[int, ...]  # a program's place in the grid


@dataclass(frozen=True)
class Layout:
    """How a tensor that a kernel was given lies in memory, in numbers from its first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def index_of(self, offset: int) -> tuple[int, ...] | None:
        """Which element lies at an offset; None if none of this tensor's does."""
        index = [0] * len(self.shape)
        for dim in sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]):
            if self.shape[dim] > 1 and self.strides[dim] > 0:
                index[dim] = min(offset // self.strides[dim], self.shape[dim] - 1)
                offset -= index[dim] * self.strides[dim]
        return tuple(index) if offset == 0 else None


@dataclass(frozen=True)
class Access:
    """A load or a store of one program: of which tensor, by the kernel's name for it, and at which offsets
    from the tensor's first number. Lanes that a mask stops are not in it."""

    program: Program
    tensor: str
    kind: str
    offsets: tuple[int, ...]


class Stray(NamedTuple):
    """A number's worth of an access that met no element of its tensor."""

    tensor: str
    offset: int
    kind: str
    program: Program


@dataclass(frozen=True)
class KernelRun:
    """A launch of a kernel: its grid, how its tensors lie, and what its programs accessed, in their order."""

    kernel: str
    grid: tuple[int, ...]
    layouts: Mapping[str, Layout]
    accesses: list[Access] = field(default_factory=list)

    @property
    def programs(self) -> list[Program]:
        """The grid's programs."""
        return [tuple(map(int, program)) for program in np.ndindex(*self.grid)]

    def touched(self, tensor: str) -> list[tuple[int, str, Program]]:
        """Each number of a tensor that was read or written, as (offset, READ or WRITE, program)."""
        return [(o, a.kind, a.program) for a in self.accesses if a.tensor == tensor for o in a.offsets]

    def strays(self) -> list[Stray]:
        """What met no element of its tensor."""
        return [
            Stray(name, *touch)
            for name, layout in self.layouts.items()
            for touch in self.touched(name)
            if layout.index_of(touch[0]) is None
        ]


@contextmanager
def record_accesses() -> Iterator[list[KernelRun]]:
    """Inside the block, Triton's interpreter runs every kernel, a GPU's too, and each launch is recorded.

    An access outside of its tensor's memory is recorded and not made: such a load gives 0. Where there is no
    Triton, no kernel can be launched, and nothing is recorded.
    """
    runs: list[KernelRun] = []
    if triton_status().mode == "off":
        yield runs
        return
    from triton.runtime import interpreter

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            _run(kernel, grid, args, kwargs, runs)

    with ExitStack() as stack:
        for kind in (triton.JITFunction, interpreter.InterpretedFunction):
            stack.enter_context(patch.object(kind, "run", run))
        yield runs


def _run(kernel: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any], runs: list[KernelRun]) -> None:
    from triton.runtime import interpreter

    if getattr(kernel, "is_gluon", bool)():
        raise OptionError(
            f"{kernel.__name__} is written in Gluon, which has no interpreter: take a lower rung"
        )
    builder = interpreter.interpreter_builder
    names = inspect.signature(kernel.fn).parameters
    known = {name: value for name, value in kwargs.items() if name in names}  # not num_warps, for one
    given = inspect.getcallargs(kernel.fn, *args, **known)
    size = tuple(grid(given)) if callable(grid) else tuple(grid)
    memory = _Memory({name: value for name, value in given.items() if isinstance(value, Tensor)})
    run = KernelRun(kernel.fn.__name__, size, memory.layouts)

    def note(kind: str, pointers: Any, mask: np.ndarray) -> tuple[Any, np.ndarray]:
        """Write an access down; the real pointers, and which of the lanes may follow them."""
        program = builder.grid_idx[: len(size)]
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        real, is_inside = np.zeros_like(pointers.data), np.zeros(pointers.data.shape, dtype=bool)
        owners = memory.owners(pointers.data)
        for owner in np.unique(owners[mask]):
            lanes = mask & (owners == owner)
            offsets, real[lanes], is_inside[lanes] = memory.find(owner, pointers.data[lanes], itemsize)
            run.accesses.append(Access(program, memory.names[owner], kind, tuple(offsets.tolist())))
        return interpreter.TensorHandle(real, pointers.dtype), is_inside

    runs.append(run)
    # First of all: where nothing was compiled yet, Triton imports more of itself here, which must be its own.
    pointers = memory.pointers(interpreter.TensorHandle)
    with ExitStack() as stack:
        for part in (tl, tl.core, tl.math):  # where a kernel calls a function, the interpreter leaves its own
            stack.enter_context(patch.dict(vars(part)))
        for name in METHODS:
            noted = _noted(getattr(builder, name), name, note, interpreter.TensorHandle)
            stack.enter_context(patch.object(builder, name, noted))
        _interpret_library(stack, kernel.fn, interpreter)
        function = interpreter.InterpretedFunction(kernel.fn)
        interpreter.GridExecutor(function.rewrite(), function.arg_names, size)(**{**given, **pointers})
    for storage, on_host in memory.storages:  # what was written goes to where the tensors are
        if storage.device.type != "cpu":
            storage.copy_(on_host)


class _Memory:
    """The tensors of a launch on the host, each at a made-up address, so that a pointer tells whose it was,
    wherever it ends up."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.names = list(tensors)
        self.layouts = {name: Layout(tuple(t.shape), tuple(t.stride())) for name, t in tensors.items()}
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
        on_host = {place: storage.cpu() for place, storage in storages.items()}  # the same, if it is there
        self.storages = [(storages[place], on_host[place]) for place in storages]
        self.tensors = [
            torch.empty(0, dtype=t.dtype).set_(
                on_host[t.untyped_storage().data_ptr()], t.storage_offset(), t.size(), t.stride()
            )
            for t in tensors.values()
        ]

    def pointers(self, handle: Callable) -> dict[str, Any]:
        """What a kernel gets for each tensor: a pointer to its made-up address."""
        addresses = (np.array([WINDOW * (i + 1)], dtype=np.uint64) for i in range(len(self.names)))
        kinds = [tl.str_to_ty(triton.runtime.jit.mangle_type(tensor), None) for tensor in self.tensors]
        pairs = zip(addresses, kinds, strict=True)
        made = [tl.tensor(handle(address, kind), kind) for address, kind in pairs]
        return dict(zip(self.names, made, strict=True))

    def owners(self, addresses: np.ndarray) -> np.ndarray:
        """Which tensor each address is relative to."""
        nearest = (addresses + np.uint64(WINDOW // 2)) // np.uint64(WINDOW)
        return np.clip(nearest.astype(np.int64) - 1, 0, len(self.tensors) - 1)

    def find(
        self, owner: int, addresses: np.ndarray, itemsize: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Addresses of one tensor as offsets in numbers, as real addresses, and whether those are in its
        storage."""
        tensor = self.tensors[owner]
        distances = addresses.astype(np.int64) - WINDOW * (owner + 1)
        storage = tensor.untyped_storage()
        first = storage.data_ptr() - tensor.data_ptr()  # in bytes from the tensor's first number
        is_inside = (distances >= first) & (distances <= first + storage.nbytes() - itemsize)
        real = (distances + tensor.data_ptr()).astype(np.uint64)
        return distances // itemsize, real, is_inside


# By the interpreter's method: what it does, and where its pointers and its mask stand among its arguments.
METHODS = {
    "create_masked_load": (READ, 0, 1),
    "create_masked_store": (WRITE, 0, 2),
    "create_atomic_rmw": (WRITE, 1, 3),
    "create_atomic_cas": (WRITE, 0, None),
}


def _noted(method: Callable, name: str, note: Callable, handle: Callable) -> Callable:
    """What takes the place of one of METHODS: its access to memory is noted, and kept inside."""
    kind, pointers_at, mask_at = METHODS[name]

    def noted(*arguments: Any) -> Any:
        args = list(arguments)
        pointers = args[pointers_at]
        lanes = True if mask_at is None else np.asarray(args[mask_at].data, dtype=bool)
        lanes = np.broadcast_to(lanes, pointers.data.shape)
        args[pointers_at], is_inside = note(kind, pointers, lanes)
        if mask_at is not None:
            args[mask_at] = handle(is_inside, tl.int1)
        elif not is_inside.all():
            raise IndexError("a compare-and-swap outside of its tensor")
        return method(*args)

    return noted


def _interpret_library(stack: ExitStack, function: Callable, interpreter: Any) -> None:
    """On a GPU, let the interpreter have what a kernel calls, Triton's own `tl.sum` among it."""
    interpreted: dict[int, Any] = {}  # by id: Triton hashes a kernel by its source, which it would read now
    for namespace in (vars(tl.standard), vars(tl), function.__globals__):
        compiled = {name: f for name, f in namespace.items() if isinstance(f, triton.JITFunction)}
        stack.callback(namespace.update, compiled)
        for name, f in compiled.items():
            namespace[name] = interpreted.setdefault(id(f), interpreter.InterpretedFunction(f.fn))
