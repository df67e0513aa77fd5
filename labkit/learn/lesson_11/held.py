"""Lesson 11: what a program may read before it waits for the kernel before it, on a simulated GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Report
from labkit.learn.gates.gate import proven
from labkit.learn.steps import noted

N, K, ROWS = 8, 6, 2  # outputs, inputs, and the outputs of a program


class SimulatedProgram:
    """One program of a kernel that was started early: the kernel before it may still write x.

    `wait()` returns when that kernel has ended. `load(tensor, rows)` returns the values of these rows as they
    are in memory now, and keeps them in registers. rows: a slice; all rows by default.
    """

    def __init__(self, kernel_before: Callable[[], None]) -> None:
        self._kernel_before = kernel_before
        self.has_waited = False
        self.loaded: list[tuple[int, range, bool]] = []  # tensor, rows, whether after the wait

    def wait(self) -> None:
        """Wait until the kernel before has ended."""
        self._kernel_before()
        self.has_waited = True

    def load(self, tensor: Tensor, rows: slice = slice(None)) -> Tensor:
        """The values of these rows, as they are in memory now."""
        self.loaded.append((id(tensor), range(len(tensor))[rows], self.has_waited))
        return tensor[rows].clone()


Product = Callable[[SimulatedProgram, Tensor, Tensor, slice], Tensor]


def waits_first(program: SimulatedProgram, weight: Tensor, rows: slice) -> Tensor:
    """A program's rows of the weight, loaded after the wait: as on the rung below."""
    program.wait()
    return program.load(weight, rows)


def check_held(product: Product) -> Report:
    """Run the programs of a product, each with its rows of the weight, while another kernel still writes x.

    It never raises, except for an interrupt.
    """
    told = f"{N // ROWS} programs load their rows of the weight before the wait, and x after it."
    return noted(proven("held", [lambda: held_proven(product)], told), "11", "held", product)


def held_proven(product: Product) -> None:
    """Raise BrokenContract for a program that makes wrong values, or that loads too late, early or much."""
    for number in range(N // ROWS):
        weight = torch.arange(1.0, N * K + 1).view(N, K)
        x, written = torch.zeros(K), torch.linspace(1, 2, K)
        rows = slice(ROWS * number, ROWS * (number + 1))
        program = SimulatedProgram(lambda x=x, written=written: x.copy_(written))
        made = product(program, x, weight, rows)
        whose = f"program {number} of {N // ROWS}"
        if not program.has_waited:
            raise BrokenContract(f"a program waits for the kernel before it: {whose} never calls wait().")
        right_outputs(made, weight[rows] @ written, whose)
        loads_its_own(program, weight, range(N)[rows], whose)


def right_outputs(made: object, expected: Tensor, whose: str) -> None:
    """Raise BrokenContract unless a program made its rows of the product, of x as it is after the wait."""
    if not isinstance(made, Tensor) or made.shape != expected.shape:
        shown = f"a tensor {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise BrokenContract(
            f"a program makes its own outputs: {whose} returns {shown}, expected a tensor "
            f"{list(expected.shape)}: its rows of the weight times x."
        )
    if not torch.allclose(made, expected):
        raise BrokenContract(
            f"x is read after the wait: {whose} makes {made.tolist()}, expected {expected.tolist()}. Before "
            "the wait x has the values of an earlier step, here zeros."
        )


def loads_its_own(program: SimulatedProgram, weight: Tensor, own: range, whose: str) -> None:
    """Raise BrokenContract unless a program loads its own rows of the weight, once, before the wait."""
    loads = [(rows, has_waited) for tensor, rows, has_waited in program.loaded if tensor == id(weight)]
    for rows, _ in loads:
        if not set(rows) <= set(own):
            raise BrokenContract(
                f"a program loads its own rows: {whose} loads rows {[*rows]} of the weight, expected "
                f"{[*own]}. Rows that every program loads are read {N // ROWS} times."
            )
    early = sorted(row for rows, has_waited in loads if not has_waited for row in rows)
    if early != [*own]:
        raise BrokenContract(
            f"weights are loaded before the wait, each once: {whose} has loaded rows {early} of the weight "
            f"when it waits, expected {[*own]}. No kernel writes weights, so they need no wait."
        )
    if any(has_waited for _, has_waited in loads):
        raise BrokenContract(
            f"weights are loaded before the wait, each once: {whose} loads rows of the weight again after "
            "it. Keep what the first load returned."
        )
