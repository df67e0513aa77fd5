"""Which numbers each program of a small Triton kernel loads and stores: its Python function, run by hand.

`labkit.watch.record_accesses` sees the same in Triton's interpreter. This needs no Triton, which Windows and
macOS do not have: the function is called once per program with another `tl`, which has the same names and
writes down each access.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.learn.exercise import BrokenContract

NOTHING = float("nan")  # what a lane holds whose mask was off, or that lies beyond its tensor


class Access(NamedTuple):
    """One load or store of a program: the places that it touched, counted from the tensor's first number.
    Places whose mask was off are left out."""

    kind: str  # "load" or "store"
    program: tuple[int, ...]
    tensor: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Pointer:
    """A pointer to one place of a tensor, or to many, as a kernel has it."""

    tensor: str
    numbers: Tensor  # [n], all of the tensor
    places: Tensor  # of whole numbers, of any shape

    def __add__(self, offset: Any) -> "Pointer":
        return replace(self, places=self.places + offset)

    __radd__ = __add__

    def __sub__(self, offset: Any) -> "Pointer":
        return self + (-offset)


def record(
    kernel: Any, grid: Sequence[int], tensors: Mapping[str, Tensor], constants: Mapping[str, int]
) -> list[Access]:
    """Run each program of a kernel, one after another, and write down what it loads and stores.

    kernel: decorated by `triton.jit`, or not; its arguments are the tensors, flat and by name, and then the
    constants, in this order. What lies beyond a tensor's end is not written, and reads as NaN.
    """
    function = getattr(kernel, "fn", kernel)
    accesses: list[Access] = []
    pointers = [Pointer(name, numbers, torch.tensor(0)) for name, numbers in tensors.items()]
    for program in product(*(range(count) for count in grid)):
        language = Language(program, tuple(grid), accesses)
        by_hand = types.FunctionType(
            function.__code__,
            {**function.__globals__, "tl": language},
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        by_hand(*pointers, *constants.values())
    return accesses


class Language:
    """`tl` for one program: what a small kernel needs of it."""

    constexpr = int
    int32, int64, float16, float32 = torch.int32, torch.int64, torch.float16, torch.float32
    where, exp, sqrt = staticmethod(torch.where), staticmethod(torch.exp), staticmethod(torch.sqrt)

    def __init__(self, program: tuple[int, ...], grid: tuple[int, ...], accesses: list[Access]) -> None:
        self._program, self._grid, self._accesses = program, grid, accesses

    def __getattr__(self, name: str) -> Callable:
        raise BrokenContract(
            f"`tl.{name}` is unknown here. program_id, arange, load, store, sum and the usual operators are "
            "all that this kernel needs."
        )

    def program_id(self, axis: int) -> int:
        return self._program[axis] if axis < len(self._program) else 0

    def num_programs(self, axis: int) -> int:
        return self._grid[axis] if axis < len(self._grid) else 1

    def arange(self, start: int, end: int) -> Tensor:
        count = end - start
        if count < 1 or count & (count - 1):
            raise BrokenContract(f"`tl.arange({start}, {end})` has {count} numbers: a power of 2 is needed.")
        return torch.arange(start, end)

    def load(self, pointer: Pointer, mask: Any = True, other: Any = NOTHING) -> Tensor:
        pointer, on = self._note("load", pointer, mask)
        there = on & self._inside(pointer)
        loaded = pointer.numbers[torch.where(there, pointer.places, 0)]
        return torch.where(
            there, loaded, torch.where(on, NOTHING, torch.as_tensor(other, dtype=loaded.dtype))
        )

    def store(self, pointer: Pointer, value: Any, mask: Any = True) -> None:
        pointer, on = self._note("store", pointer, mask)
        there = on & self._inside(pointer)
        values = torch.as_tensor(value, dtype=pointer.numbers.dtype).broadcast_to(pointer.places.shape)
        pointer.numbers[pointer.places[there]] = values[there]

    def sum(self, values: Tensor, axis: int | None = None) -> Tensor:
        return values.sum() if axis is None else values.sum(axis)

    def max(self, values: Tensor, axis: int | None = None) -> Tensor:
        return values.max() if axis is None else values.amax(axis)

    def cdiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def _note(self, kind: str, pointer: Pointer, mask: Any) -> tuple[Pointer, Tensor]:
        """Write an access down; the pointer and its mask, in one shape."""
        if not isinstance(pointer, Pointer):
            raise BrokenContract(f"`tl.{kind}` needs a pointer: one of the kernel's `_ptr` plus offsets.")
        places, on = torch.broadcast_tensors(pointer.places, torch.as_tensor(mask, dtype=torch.bool))
        self._accesses.append(Access(kind, self._program, pointer.tensor, tuple(places[on].tolist())))
        return replace(pointer, places=places), on

    @staticmethod
    def _inside(pointer: Pointer) -> Tensor:
        return (pointer.places >= 0) & (pointer.places < len(pointer.numbers))
