"""Where an engine computes, and in which dtype."""

import contextlib
import re

import torch

from labkit.checks import shown
from labkit.errors import OptionError
from labkit.model.checkpoint import DTYPES
from labkit.options import EngineOptions

DEVICE = re.compile(r"cpu(:0)?|cuda(:(0|[1-9][0-9]{0,3}))?")


def pick_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, with its index ("cuda:0") as tensors report it; None: the best there is.

    Raises OptionError for anything but the CPU and the CUDA GPUs of this machine.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = str(device) if isinstance(device, str | torch.device) else ""
    if not DEVICE.fullmatch(name):
        raise OptionError(f"device must be 'cpu', 'cuda', or a GPU such as 'cuda:0', not {shown(device)}")
    kind, _, index = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionError(
            f"device {name!r} needs a CUDA GPU and a CUDA build of torch; see `python -m labkit.doctor`"
        )
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"device {name!r} is not on this machine: its GPUs are 'cuda:0' to "
            f"'cuda:{torch.cuda.device_count() - 1}'"
        )
    return torch.empty(0, device=name).device


def current_device(device: torch.device) -> contextlib.AbstractContextManager:
    """A context in which `device` is the calling thread's current GPU; on the CPU it does nothing.

    The current GPU is where streams, events, graphs and kernels go, and each thread has its own.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def default_dtype(device: torch.device) -> torch.dtype:
    """What an engine computes in unless it is told otherwise: float16 on a GPU, float32 on the CPU."""
    return torch.float16 if device.type == "cuda" else torch.float32


def check_dtype(dtype: torch.dtype, options: EngineOptions) -> torch.dtype:
    """The dtype itself. Raises OptionError if an engine with these options cannot compute in it."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        allowed = ", ".join(map(str, DTYPES))
        raise OptionError(f"dtype must be one of {allowed}, or None to choose, not {shown(dtype)}")
    if dtype == torch.float64 and options.layer_kernels == "fused":
        raise OptionError(
            "dtype = torch.float64 needs layer_kernels = 'separate' (rungs below 09): the fused ones "
            "compute in float32"
        )
    return dtype


def cache_dtype(dtype: torch.dtype, options: EngineOptions, device: torch.device) -> torch.dtype:
    """What keys and values are kept in by an engine that computes in `dtype`. Raises OptionError for fp8 on a
    GPU that has none."""
    if options.kv_cache_dtype == "fp8" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 9):
            raise OptionError(
                f"kv_cache_dtype = 'fp8' needs a GPU of compute capability 8.9 or more, and {device} has "
                f"{'.'.join(map(str, capability))}. Take 'int8'"
            )
    return {"auto": dtype, "int8": torch.uint8, "fp8": torch.float8_e4m3fn}[options.kv_cache_dtype]
