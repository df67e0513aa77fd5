"""The contract of a kernel's arguments, checked before it is launched."""

import os

import torch
from torch import Tensor

DEBUG = os.environ.get("LABKIT_DEBUG") == "1"  # check indices' values, too, and wait for the GPU


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    shape: tuple[int | str, ...],
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    last_stride_is_1: bool = False,
    is_contiguous: bool = False,
) -> None:
    """Check one tensor against its contract. Raises ValueError with its name, what it is and what is
    expected.

    shape: a number fixes a dimension, a name ("B") leaves it free.
    dtype, device: None leaves them free. last_stride_is_1: whether the last dimension must be contiguous;
    is_contiguous: whether all of it must be.
    """
    have = tensor.shape
    fits = have == shape or (  # most often it is, and a step asks a hundred times
        len(have) == len(shape)
        and all(want == size or isinstance(want, str) for size, want in zip(have, shape, strict=True))
    )
    if not fits:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [{', '.join(map(str, shape))}]")
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}, expected {dtype}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, expected {device}")
    if last_stride_is_1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name} has strides {tensor.stride()}, expected the last dimension to be contiguous"
        )
    if is_contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}, expected it to be contiguous")


def check_range(name: str, indices: Tensor, limit: int, least: int = 0) -> None:
    """Raises ValueError if an index is not in `least` to limit - 1. Only with LABKIT_DEBUG=1: it reads every
    index."""
    if is_read(indices):
        low, high = indices.min().item(), indices.max().item()
        if low < least or high >= limit:
            raise ValueError(f"{name} has values from {low} to {high}, outside of {least} to {limit - 1}")


def check_rising(name: str, indices: Tensor) -> None:
    """Raises ValueError if an index [n] is below the one before it. Only with LABKIT_DEBUG=1."""
    if is_read(indices) and (indices.diff() < 0).any():
        raise ValueError(f"{name} is {indices.tolist()}, expected no number below the one before it")


def is_read(indices: Tensor) -> bool:
    """Whether indices are read to check them. Not while a CUDA graph is captured: then they do not exist
    before it is replayed."""
    if not DEBUG or not indices.numel():
        return False
    return not (indices.is_cuda and torch.cuda.is_current_stream_capturing())
