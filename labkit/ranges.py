"""Named ranges of time in a step: for the torch profiler always, for Nsight Systems when LABKIT_NVTX=1."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import record_function

from labkit.errors import OptionError

nvtx_enabled = os.environ.get("LABKIT_NVTX") == "1" and torch.cuda.is_available()
UNNAMED: AbstractContextManager[object] = nullcontext()


def enable_nvtx() -> None:
    """Name ranges for Nsight Systems from now on, as LABKIT_NVTX=1 does.

    Raises OptionError where there is no CUDA GPU.
    """
    global nvtx_enabled
    if not torch.cuda.is_available():
        raise OptionError("NVTX ranges need a CUDA GPU; leave them out here")
    nvtx_enabled = True


def named_range(name: str) -> AbstractContextManager[object]:
    """A context whose time is named in a torch profile and, with LABKIT_NVTX=1, in Nsight Systems."""
    if nvtx_enabled:
        return _range_for_all(name)
    return record_function(name) if is_looked_at() else UNNAMED


def is_looked_at() -> bool:
    """Whether somebody profiles, or counts operators: naming a range is two. A step that nobody looks at need
    not wait for it."""
    return torch.autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack() > 0


@contextmanager
def _range_for_all(name: str) -> Iterator[None]:
    with record_function(name):
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
