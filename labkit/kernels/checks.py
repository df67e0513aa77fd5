"""The contract of a kernel's arguments, checked before it is launched."""

import torch
from torch import Tensor


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    shape: tuple[int | str, ...],
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    last_stride_is_1: bool = False,
) -> None:
    """Raises ValueError that names the tensor, what it is and what it should be.

    shape: a number fixes a dimension, a name ("B") leaves it free.
    """
    fits = tensor.dim() == len(shape) and all(
        isinstance(want, str) or have == want for have, want in zip(tensor.shape, shape, strict=True)
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
