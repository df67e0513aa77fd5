"""Kernels, one family a file: a Triton kernel, its checked wrapper, and its plain-PyTorch twin."""

from labkit.kernels.paged_attention import (
    PagedAttentionFunction,
    paged_attention_plain,
    paged_attention_triton,
)
from labkit.kernels.triton_runtime import require_triton, triton_status

__all__ = [
    "PagedAttentionFunction",
    "paged_attention_plain",
    "paged_attention_triton",
    "require_triton",
    "triton_status",
]
