"""Where an engine computes, in which numbers, and whether its pool has room there."""

import contextlib
import os
import re
import sys

import torch

from labkit.checks import shown
from labkit.engine.config import CacheConfig, SchedulerConfig
from labkit.errors import OptionError
from labkit.model import ModelConfig
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


def check_room(
    device: torch.device,
    dtype: torch.dtype,
    config: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
) -> None:
    """Raises OptionError for a KV pool or a batch's logits larger than the device's whole memory.

    Sizes that pass may still not fit beside what is in memory; torch then says so.
    """
    memory = memory_of(device)
    where = f"{device} has {memory / 2**30:.1f} GiB of memory"
    num_slots = cache.block_size * cache.blocks_per_layer(scheduler.max_batch_size, config.max_positions)
    if num_slots * config.kv_values_per_token * dtype.itemsize > memory:
        raise OptionError(
            f"the KV pool is too large: {where}. Lower block_size ({shown(cache.block_size)}) or "
            f"max_blocks_per_layer ({shown(cache.max_blocks_per_layer)}; None takes as many as "
            f"max_batch_size, {shown(scheduler.max_batch_size)}, needs)"
        )
    if scheduler.max_batch_size * config.vocab_size * dtype.itemsize > memory:
        raise OptionError(
            f"the logits of a full batch are too large: {where}. Lower max_batch_size "
            f"({shown(scheduler.max_batch_size)})"
        )


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has, used or free; sys.maxsize where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):  # Windows has no sysconf
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
