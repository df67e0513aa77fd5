"""A chain of small kernels: when the host launches each and the GPU runs it, computed and measured here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from labkit.bench.limit import synchronize
from labkit.show.lanes import Stretch

# When each kernel begins, from when its launch is done (microseconds) and what a kernel takes.
Begins = Callable[[Sequence[float], float], Sequence[float]]

WORDS = {"launch": "host: launches a kernel", "gpu": "GPU: runs the kernel of that number"}


@dataclass(frozen=True)
class Chain:
    """A step of `kernels` equal kernels, each of which needs the one before.

    host_us, gpu_us: microseconds that a launch takes the host, and a kernel the GPU. read_back: the host
    reads a number of each step's last kernel before it goes on. The copy of that number takes no time here,
    and the queue between the two has no end.
    """

    kernels: int
    host_us: float
    gpu_us: float
    read_back: bool = False

    @property
    def step_us(self) -> float:
        """Microseconds from the end of one step to the end of the next."""
        slower = max(self.host_us, self.gpu_us)
        if self.read_back:
            return self.host_us + (self.kernels - 1) * slower + self.gpu_us
        return self.kernels * slower

    def __str__(self) -> str:
        host, gpu = (100 * self.kernels * us / self.step_us for us in (self.host_us, self.gpu_us))
        return f"{self.step_us:,.0f} µs per step, host busy {host:.0f} %, GPU {gpu:.0f} %"


def kernel_begins(issued: Sequence[float], gpu_us: float) -> list[float]:
    """When each kernel of a stream begins: after its launch, and after the kernel before it."""
    begins: list[float] = []
    for launched in issued:
        free = begins[-1] + gpu_us if begins else 0.0
        begins.append(max(launched, free))
    return begins


def schedule(chain: Chain, num_steps: int, begins: Begins = kernel_begins) -> list[Stretch]:
    """What the host and the GPU do in the first steps of a chain; kernels are numbered through.

    begins: says when each kernel begins, for those launched so far.
    """
    issued: list[float] = []
    host = 0.0
    for _ in range(num_steps):
        for _ in range(chain.kernels):
            host += chain.host_us
            issued.append(host)
        if chain.read_back:
            host = max(host, begins(issued, chain.gpu_us)[-1] + chain.gpu_us)
    launches = [Stretch("host", "launch", end - chain.host_us, end, str(i)) for i, end in enumerate(issued)]
    starts = begins(issued, chain.gpu_us)
    kernels = [Stretch("GPU", "gpu", start, start + chain.gpu_us, str(i)) for i, start in enumerate(starts)]
    return [*launches, *kernels]


@dataclass(frozen=True)
class ChainTime:
    """Microseconds per kernel of a measured chain: until all were launched, and until all were done."""

    issued_us: float
    done_us: float
    read_us: float  # the same chain, with a number read back after each kernel


def time_chain(device: torch.device, numbers: int, kernels: int = 300, rounds: int = 15) -> ChainTime:
    """Time `x + 1` on so many numbers, in a chain of so many kernels; the median of the rounds.

    On a CPU an operator is done when its call returns, so that all three times are nearly one.
    """

    def run(read_back: bool) -> tuple[float, float]:
        """Seconds until all was launched, and until all was done."""
        x = torch.zeros(numbers, device=device)
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(kernels):
            x = x + 1
            if read_back:
                x[0].item()
        issued = time.perf_counter()
        synchronize(device)
        return issued - begin, time.perf_counter() - begin

    seconds = [(*run(read_back=False), run(read_back=True)[1]) for _ in range(rounds)]
    return ChainTime(*(1e6 * median(times) / kernels for times in zip(*seconds, strict=True)))
