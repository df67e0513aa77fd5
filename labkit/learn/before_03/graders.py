"""Before 03: the kernels that a reader writes, run by hand and judged by what each loads and stores."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.kernels.triton_runtime import triton_status
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven

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


class Language:
    """`tl` for one program: what a small kernel needs of it."""

    int32, int64, where = torch.int32, torch.int64, staticmethod(torch.where)

    def __init__(self, program: tuple[int, ...], accesses: list[Access]) -> None:
        self._program, self._accesses = program, accesses

    def __getattr__(self, name: str) -> Callable:
        raise BrokenContract(
            f"`tl.{name}` is unknown here. program_id, arange, load, store, sum and the usual operators are "
            "all that this kernel needs."
        )

    def program_id(self, axis: int) -> int:
        return self._program[axis] if axis < len(self._program) else 0

    def arange(self, start: int, end: int) -> Tensor:
        count = end - start
        if count < 1 or count & (count - 1):
            raise BrokenContract(f"`tl.arange({start}, {end})` has {count} numbers: a power of 2 is needed.")
        return torch.arange(start, end)

    def load(self, pointer: Pointer, mask: Any = True, other: Any = NOTHING) -> Tensor:
        pointer, on = self._note("load", pointer, mask)
        there = on & self._inside(pointer)
        loaded = pointer.numbers[torch.where(there, pointer.places, 0)]
        return torch.where(there, loaded, torch.where(on, NOTHING, other))

    def store(self, pointer: Pointer, value: Any, mask: Any = True) -> None:
        pointer, on = self._note("store", pointer, mask)
        there = on & self._inside(pointer)
        values = torch.as_tensor(value, dtype=pointer.numbers.dtype).broadcast_to(pointer.places.shape)
        pointer.numbers[pointer.places[there]] = values[there]

    def sum(self, values: Tensor, axis: int | None = None) -> Tensor:
        return values.sum() if axis is None else values.sum(axis)

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


OFF = (
    "Where the mask is off, `tl.load` returns anything (here nan), and so does everything computed from it. "
    "Its argument `other` says what to put there."
)
UNTOUCHED = -77.0  # in `out`, before a kernel runs


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: how many programs, on which numbers, and what must be in `out` afterwards."""

    what: str  # in words
    num_programs: int
    x: Tensor  # flat
    constants: Mapping[str, int]
    expected: Tensor

    def record(self, kernel: Any, out: Tensor | None = None) -> list[Access]:
        """Run each program of a kernel, decorated by `triton.jit` or not, one after another, and write down
        what it loads and stores. What lies beyond a tensor's end is not written, and reads as NaN.

        out: where the numbers go; thrown away by default.
        """
        tensors = {"x": self.x.clone(), "out": torch.empty_like(self.expected) if out is None else out}
        pointers = [Pointer(name, numbers, torch.tensor(0)) for name, numbers in tensors.items()]
        function = getattr(kernel, "fn", kernel)
        code, names = function.__code__, function.__globals__
        accesses: list[Access] = []
        for program in range(self.num_programs):
            language = Language((program,), accesses)
            by_hand = FunctionType(code, {**names, "tl": language}, closure=function.__closure__)
            by_hand(*pointers, *self.constants.values())
        return accesses


@dataclass(frozen=True)
class KernelExercise:
    """A kernel for the reader to write: kernel(x_ptr, out_ptr, *constants).

    A launch is recorded by hand first, so that what is wrong can be told by program and place; then Triton
    runs it, where it can.
    """

    name: str
    launches: tuple[Launch, ...]
    hint: str  # for a number that is wrong

    def grade(self, kernel: Any) -> Report:
        """Right, or the first contract that a launch breaks. It never raises."""
        trials = [partial(self._check, kernel, launch) for launch in self.launches]
        return proven(self.name, trials, f"{len(self.launches)} launches.")

    def _check(self, kernel: Any, launch: Launch) -> None:
        out = torch.full_like(launch.expected, UNTOUCHED)
        accesses = launch.record(kernel, out)
        stores = [access for access in accesses if access.kind == "store"]
        _check_ends(stores, launch)
        _check_stored_once(stores, launch)
        self._check_numbers(out, launch)
        _check_ends(accesses, launch)
        if triton_status().mode != "off":
            if not hasattr(kernel, "fn"):
                raise BrokenContract("a kernel has `@triton.jit` above its `def`: Triton cannot launch it.")
            self._check_numbers(run(kernel, launch), launch)

    def _check_numbers(self, out: Tensor, launch: Launch) -> None:
        wrong = (~torch.isclose(out, launch.expected)).nonzero().flatten().tolist()
        for place in wrong:
            found, wanted = float(out[place]), float(launch.expected[place])
            hint = OFF if math.isnan(found) else self.hint
            raise BrokenContract(
                f"every number of out is right: with {launch.what}, out[{place}] is {found:g}, expected "
                f"{wanted:g} ({len(wrong)} of {len(out)} are wrong). {hint}"
            )


def run(kernel: Any, launch: Launch) -> Tensor:
    """Launch a kernel by Triton, whose record was right, and return `out`."""
    device = "cuda" if triton_status().mode == "native" else "cpu"
    out = torch.full_like(launch.expected, UNTOUCHED, device=device)
    kernel[(launch.num_programs,)](launch.x.to(device), out, *launch.constants.values())
    return out.cpu()


def _check_ends(accesses: list[Access], launch: Launch) -> None:
    sizes = {"x": len(launch.x), "out": len(launch.expected)}
    for kind, program, tensor, places in accesses:
        beyond = [place for place in places if not 0 <= place < sizes[tensor]]
        if beyond:
            harm = "overwrites" if kind == "store" else "reads"
            raise BrokenContract(
                f"a program touches nothing outside of its tensors: with {launch.what}, program {program[0]} "
                f"{kind}s {_named(tensor, beyond)}, but {tensor} ends with {tensor}[{sizes[tensor] - 1}]. A "
                f"GPU then {harm} what belongs to others. The mask must be off for these."
            )


def _check_stored_once(stores: list[Access], launch: Launch) -> None:
    owners: dict[int, list[int]] = {place: [] for place in range(len(launch.expected))}
    for store in stores:
        for place in store.places:
            owners[place].append(store.program[0])
    for place, programs in owners.items():
        if len(programs) > 1:
            raise BrokenContract(
                f"each program has numbers of its own: with {launch.what}, out[{place}] is stored "
                f"{len(programs)} times, by the programs {', '.join(map(str, programs))}. "
                "`tl.program_id(0)` says which program it is."
            )
    missing = [place for place, programs in owners.items() if not programs]
    if missing:
        raise BrokenContract(
            f"together the programs store all of out: with {launch.what}, no program stores "
            f"{_named('out', missing)}."
        )


def _named(tensor: str, places: list[int]) -> str:
    first = ", ".join(f"{tensor}[{place}]" for place in places[:3])
    return f"{first} and {len(places) - 3} more" if len(places) > 3 else first


def add_one_launch(n: int, block: int) -> Launch:
    """x + 1 on n numbers, `block` of them per program."""
    num_programs = -(-n // block)
    x = torch.arange(n, dtype=torch.float32) * 3
    what = f"{n} numbers and {num_programs} program{'s' * (num_programs > 1)} of {block}"
    return Launch(what, num_programs, x, {"n": n, "BLOCK": block}, x + 1)


PLUS_ONE = "Each number of out is the number of x in the same place, plus 1."
ADD_ONE_WHOLE = KernelExercise(
    "add_one",
    tuple(add_one_launch(n, block) for n, block in ((4, 4), (12, 4), (64, 16), (8, 8))),
    PLUS_ONE,
)
ADD_ONE = KernelExercise(
    "add_one",
    tuple(add_one_launch(n, block) for n, block in ((12, 4), (10, 4), (1, 4), (4, 8), (100, 32), (33, 32))),
    PLUS_ONE,
)


def row_sums_launch(rows: int, columns: int, stride: int, block_rows: int, block_columns: int) -> Launch:
    """The sums of the rows of 1, 2, 3, ..., which begin `stride` numbers apart; between them lie others."""
    values = 1 + torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    matrix = torch.full((rows, stride), 1000.0)
    matrix[:, :columns] = values
    num_programs = -(-rows // block_rows)
    what = (
        f"{rows} rows of {columns} numbers, {stride} apart, and {num_programs} "
        f"program{'s' * (num_programs > 1)} of {block_rows} rows"
    )
    sizes = {"num_rows": rows, "num_columns": columns, "stride": stride}
    constants = sizes | {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns}
    return Launch(what, num_programs, matrix.flatten(), constants, values.sum(1))


ROW_SUMS = KernelExercise(
    "row_sums",
    tuple(
        row_sums_launch(*shape)
        for shape in ((4, 4, 4, 2, 4), (4, 8, 8, 4, 8), (4, 3, 3, 2, 4), (4, 4, 6, 2, 4), (5, 6, 8, 2, 8))
    ),
    "A row begins `stride` numbers after the row above, and has `num_columns` numbers; anything outside of "
    "the row must count as 0.",
)
