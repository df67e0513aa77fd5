"""Lesson 11: what a program may ask for before it waits, on a GPU that is played."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Report
from labkit.learn.gates.gate import proven

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

    def wait(self) -> None:
        """Wait until the kernel before has ended."""
        if not self.has_waited:
            self._kernel_before()
        self.has_waited = True

    def load(self, tensor: Tensor, rows: slice = slice(None)) -> Tensor:
        """The numbers of these rows, as they are in memory now."""
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
    return proven(
        "prefetch",
        [lambda: prefetch_proven(product)],
        f"{N // ROWS} programs ask for {N * K * NUMBER_BYTES} of {N * K * NUMBER_BYTES} bytes of weights "
        "before the wait, and for nothing else.",
    )


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
        expected = weight[rows] @ there
        if not isinstance(made, Tensor) or made.shape != expected.shape or not torch.allclose(made, expected):
            shown = made.tolist() if isinstance(made, Tensor) else type(made).__name__
            raise BrokenContract(
                f"x is read behind the wait: {whose} makes {shown}, expected {expected.tolist()}. Before it "
                "x has the numbers of an earlier step, here zeros. Weights do not change."
            )
        asked = {row: times for (tensor, row), times in program.asked_early.items() if tensor == id(weight)}
        if program.asked_early.keys() - {(id(weight), row) for row in asked}:
            raise BrokenContract(
                f"what is asked for early is there: {whose} asks for x before the wait, which the kernel "
                "before is still writing. It writes through the L2 cache, so x is there without asking."
            )
        own = [*range(N)[rows]]
        for row in [row for row in own if row not in asked]:
            raise BrokenContract(
                f"weights are asked for while the program waits: {whose} asks for rows {sorted(asked)} of "
                f"the weight before wait(), expected {own}; row {row} is missing."
            )
        if len(asked) > len(own) or max(asked.values()) > 1:
            raise BrokenContract(
                f"a program asks for its own rows, once: {whose} asks for rows {sorted(asked)} of the "
                f"weight, expected {own}. What all programs ask for, memory is asked for {N // ROWS} times."
            )
