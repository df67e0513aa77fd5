"""Before 03: how many programs a multiprocessor holds, in how many waves they run, and what that brings."""

from dataclasses import dataclass

import pandas as pd

from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.results import Record
from labkit.results.kernels import ONE_PROGRAM

THREADS = 32  # of a warp
REGISTER_UNIT = 256  # registers are handed out to a warp in pieces of so many


# Of compute capability 9.0: NVIDIA's Hopper Tuning Guide, section "Occupancy" and "Unified Shared
# Memory/L1/Texture Cache", and the CUDA C++ Programming Guide, table "Technical Specifications per Compute
# Capability" (https://docs.nvidia.com/cuda/hopper-tuning-guide/). Of the H100 with SXM5: NVIDIA's white paper
# "H100 Tensor Core GPU Architecture".
@dataclass(frozen=True)
class GPU:
    """Limits of a GPU; all but the first, the L2 cache and the memory are those of one multiprocessor."""

    name: str = "H100"
    multiprocessors: int = 132
    registers: int = 65_536  # of 32 bits
    shared_kb: int = 228
    reserved_kb: int = 1  # of shared memory, for each program
    warps: int = 64
    programs: int = 32
    l2_mb: int = 50
    memory_gb: int = 80


H100 = GPU()


@dataclass(frozen=True)
class Kernel:
    """A launch: how many programs, and what each takes of its multiprocessor while it runs.

    registers: per thread.
    """

    programs: int
    warps: int = 4
    registers: int = 32
    shared_kb: int = 0

    def room(self) -> dict[str, int]:
        """How many of these programs a multiprocessor holds, as far as each of its limits goes."""
        per_warp = -(-THREADS * self.registers // REGISTER_UNIT) * REGISTER_UNIT
        return {
            "programs": H100.programs,
            "warps": H100.warps // self.warps,
            "registers": H100.registers // (self.warps * per_warp),
            "shared memory": H100.shared_kb // (self.shared_kb + H100.reserved_kb),
        }

    def fit(self) -> int:
        """How many of these programs a multiprocessor holds at a time; 0 if one takes more than there is."""
        return min(self.room().values())

    def occupancy(self) -> float:
        """The warps that a full multiprocessor holds, as a part of those that it could hold, 0 to 1."""
        return self.fit() * self.warps / H100.warps

    def waves(self) -> list[list[int]]:
        """How many programs run on each multiprocessor, a list per wave: as if all programs took the same
        time, so that the next ones begin when all are done. Raises ValueError if not even one fits."""
        fit, left = self.fit(), self.programs
        if not fit:
            raise ValueError(f"no program fits: {self.room()}")
        waves = []
        while left:
            now = min(left, fit * H100.multiprocessors)
            share, more = divmod(now, H100.multiprocessors)
            waves.append([share + (i < more) for i in range(H100.multiprocessors)])
            left -= now
        return waves

    def busy_share(self) -> float:
        """The places for programs that are taken, of those of all waves, 0 to 1."""
        return self.programs / (len(self.waves()) * self.fit() * H100.multiprocessors)


def bytes_in_flight(bandwidth: float, latency_ns: float) -> float:
    """Bytes that must be on their way at a time, so that a memory which answers after `latency_ns` delivers
    `bandwidth` bytes per second: Little's law."""
    return bandwidth * latency_ns * 1e-9


def programs_table(record: Record, context_len: int) -> pd.DataFrame:
    """One layer's attention with one program per request and head, a row per batch size: the programs, what
    they read, for how long, and the part of a large copy's rate.

    context_len: tokens of each request, the same work for each program.
    """
    heads = RANDOM_CONFIGS["gpt2"].num_heads
    rows = [
        {
            "programs": sample.batch_size * heads,
            "MB read": round(sample.num_bytes / 1e6, 1),
            "µs": round(sample.us, 1),
            "% of a copy's rate": round(100 * sample.rate / record.bandwidth, 1),
        }
        for sample in sorted(record.samples, key=lambda sample: sample.batch_size)
        if (sample.kernel, sample.context_len) == (ONE_PROGRAM, context_len)
    ]
    return pd.DataFrame(rows).set_index("programs")
