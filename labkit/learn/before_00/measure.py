"""A chain of small kernels on this machine's own clock."""

import time
from dataclasses import dataclass
from statistics import median

import torch

from labkit.bench.limit import synchronize


@dataclass(frozen=True)
class ChainTime:
    """Microseconds per kernel of a measured chain: until the host had launched all, and until all were
    done."""

    issued_us: float
    done_us: float
    read_us: float  # the same chain, with a number read back after each kernel


def time_chain(device: torch.device, numbers: int, kernels: int = 300, rounds: int = 15) -> ChainTime:
    """Time `x + 1` on so many numbers, in a chain of so many kernels; the median of the rounds.

    On a CPU an operator is done when its call returns, so that all three times are nearly one.
    """
    issued, done, read = [], [], []
    for _ in range(rounds):
        begin, all_issued, all_done = _run(torch.zeros(numbers, device=device), kernels, read_back=False)
        issued.append(all_issued - begin)
        done.append(all_done - begin)
        begin, _, all_done = _run(torch.zeros(numbers, device=device), kernels, read_back=True)
        read.append(all_done - begin)
    return ChainTime(*(1e6 * median(times) / kernels for times in (issued, done, read)))


def _run(x: torch.Tensor, kernels: int, read_back: bool) -> tuple[float, float, float]:
    """Seconds at the beginning, when all was launched, and when all was done."""
    synchronize(x.device)
    begin = time.perf_counter()
    for _ in range(kernels):
        x = x + 1
        if read_back:
            x[0].item()
    issued = time.perf_counter()
    synchronize(x.device)
    return begin, issued, time.perf_counter()
