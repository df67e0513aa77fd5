"""How much memory this process has."""

import sys
from pathlib import Path

import torch

STATM = Path("/proc/self/statm")  # Linux's: pages of address space, and of memory


def resident_bytes() -> int:
    """Memory of this process now; where the system does not say that, the most that it ever was; 0 on
    Windows, which has neither."""
    if sys.platform == "win32":
        return 0
    import resource

    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def bytes_held(device: torch.device) -> int:
    """Memory of this process now, and of a GPU what PyTorch has taken of it."""
    return resident_bytes() + (torch.cuda.memory_reserved(device) if device.type == "cuda" else 0)
