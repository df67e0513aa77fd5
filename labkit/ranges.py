"""Named ranges of time in a step: for the torch profiler always, for Nsight Systems when LABKIT_NVTX=1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import record_function

from labkit.errors import OptionError

nvtx_enabled = os.environ.get("LABKIT_NVTX") == "1" and torch.cuda.is_available()


def enable_nvtx() -> None:
    """Name ranges for Nsight Systems from now on, as LABKIT_NVTX=1 does.

    Raises OptionError where there is no CUDA GPU.
    """
    global nvtx_enabled
    if not torch.cuda.is_available():
        raise OptionError("NVTX ranges need a CUDA GPU; leave them out here")
    nvtx_enabled = True


@contextmanager
def named_range(name: str) -> Iterator[None]:
    """A context whose time is named in a torch profile and, with LABKIT_NVTX=1, in Nsight Systems."""
    with record_function(name):
        if not nvtx_enabled:
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
