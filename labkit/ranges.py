"""Named ranges of time in a step: for the torch profiler always, for Nsight Systems when LABKIT_NVTX=1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import record_function

NVTX_ENABLED = os.environ.get("LABKIT_NVTX") == "1" and torch.cuda.is_available()


@contextmanager
def named_range(name: str) -> Iterator[None]:
    with record_function(name):
        if not NVTX_ENABLED:
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
