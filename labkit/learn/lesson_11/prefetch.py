"""Lesson 11: what a program may ask for before it waits, on a GPU that is played."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Report
from labkit.learn.gates.gate import proven
from labkit.learn.steps import noted

N, K, ROWS = 8, 6, 2  # outputs, inputs, and the outputs of a program
NUMBER_BYTES = 4


class PlayedProgram:
    """One program of a kernel that was started early: the kernel before it may still write x.

    `wait()` returns when that has ended. `load(tensor, rows)` gives numbers as they are in memory now, and
    `prefetch(tensor, rows)` asks for them, without waiting: they come into the GPU's L2 cache. rows: a slice;
    by default all.
    """

    def __init__(self, kernel_before: Callable[[], None]) -> None:
        self._kernel_before = kernel_before
        self.has_waited = False
        self.asked_early: Counter[tuple[int, int]] = Counter()  # by tensor and row
        self.loaded: list[tuple[int, range, bool]] = []  # tensor, rows, whether behind the wait

    def wait(self) -> None:
        """Wait until the kernel before has ended."""
        if not self.has_waited:
            self._kernel_before()
        self.has_waited = True

    def load(self, tensor: Tensor, rows: slice = slice(None)) -> Tensor:
        """The numbers of these rows, as they are in memory now."""
        self.loaded.append((id(tensor), range(len(tensor))[rows], self.has_waited))
        return tensor[rows].clone()

    def prefetch(self, tensor: Tensor, rows: slice = slice(None)) -> None:
        """Ask for these rows."""
        if not self.has_waited:
            self.asked_early.update((id(tensor), row) for row in range(len(tensor))[rows])


Product = Callable[[PlayedProgram, Tensor, Tensor, slice], Tensor]


def check_prefetch(product: Product) -> Report:
    """Run the programs of a product, each with its rows of the weight, behind a kernel that writes x late.

    It never raises, but for an interrupt.
    """
    report = proven(
        "prefetch",
        [lambda: prefetch_proven(product)],
        f"{N // ROWS} programs ask for {N * K * NUMBER_BYTES} of {N * K * NUMBER_BYTES} bytes of weights "
        "before the wait, and for nothing else.",
    )
    return noted(report, "11", "prefetch", product)


def prefetch_proven(product: Product) -> None:
    """Raise BrokenContract for a program with wrong numbers, or that asks for too little or too much."""
    for number in range(N // ROWS):
        weight = torch.arange(1.0, N * K + 1).view(N, K)
        x, there = torch.zeros(K), torch.linspace(1, 2, K)
        rows = slice(ROWS * number, ROWS * (number + 1))
        program = PlayedProgram(lambda x=x, there=there: x.copy_(there))
        made = product(program, x, weight, rows)
        whose = f"program {number} of {N // ROWS}"
        if not program.has_waited:
            raise BrokenContract(f"a program waits for the kernel before it: {whose} never calls wait().")
        right_outputs(made, weight[rows] @ there, whose)
        asked_early(program, weight, x, [*range(N)[rows]], whose)
        loads_its_own(program, weight, range(N)[rows], whose)


def right_outputs(made: object, expected: Tensor, whose: str) -> None:
    """Raise BrokenContract unless a program made its rows of the product, of x as it is behind the wait."""
    if not isinstance(made, Tensor) or made.shape != expected.shape:
        shown = f"a tensor {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise BrokenContract(
            f"a program makes its own outputs: {whose} returns {shown}, expected a tensor "
            f"{list(expected.shape)}: its rows of the weight times x."
        )
    if not torch.allclose(made, expected):
        raise BrokenContract(
            f"x is read behind the wait: {whose} makes {made.tolist()}, expected {expected.tolist()}. Before "
            "it x has the numbers of an earlier step, here zeros. Weights do not change."
        )


def asked_early(program: PlayedProgram, weight: Tensor, x: Tensor, own: list[int], whose: str) -> None:
    """Raise BrokenContract unless a program asked for its own rows of the weight, once, and nothing else."""
    of_weight = {row: times for (tensor, row), times in program.asked_early.items() if tensor == id(weight)}
    others = {tensor for tensor, _ in program.asked_early} - {id(weight)}
    if id(x) in others:
        raise BrokenContract(
            f"what is asked for early is there: {whose} asks for x before the wait, which the kernel "
            "before is still writing. It writes through the L2 cache, so x is there without asking."
        )
    if others:
        raise BrokenContract(
            f"weights are asked for while the program waits: {whose} asks for a tensor that is neither the "
            "weight nor x. The tensor and its rows are two arguments: `prefetch(tensor, rows)`."
        )
    for row in [row for row in own if row not in of_weight]:
        raise BrokenContract(
            f"weights are asked for while the program waits: {whose} asks for rows {sorted(of_weight)} of "
            f"the weight before wait(), expected {own}; row {row} is missing. Only `prefetch` asks: a "
            "`load` keeps registers for its answer."
        )
    once = f"a program asks for its own rows, once: {whose} asks for"
    if len(of_weight) > len(own):
        raise BrokenContract(
            f"{once} rows {sorted(of_weight)} of the weight, expected {own}. What all programs ask for, "
            f"memory is asked for {N // ROWS} times."
        )
    for row, times in of_weight.items():
        if times > 1:
            raise BrokenContract(f"{once} row {row} of the weight {times} times.")


def loads_its_own(program: PlayedProgram, weight: Tensor, own: range, whose: str) -> None:
    """Raise BrokenContract if a program loads weights before the wait, or rows of other programs."""
    for tensor, rows, has_waited in program.loaded:
        if tensor == id(weight) and not has_waited:
            raise BrokenContract(
                f"before the wait weights are only asked for: {whose} loads rows {[*rows]} of them there. A "
                "load keeps registers for its answer; `prefetch` keeps none, and the load comes after wait()."
            )
        if tensor == id(weight) and rows != own:
            raise BrokenContract(
                f"a program reads its own rows: {whose} loads rows {[*rows]} of the weight, expected "
                f"{[*own]}. `program.load(weight, rows)` loads no others."
            )
