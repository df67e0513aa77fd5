"""What becomes of queries and keys before they meet: an RMSNorm over each head, and a rotation by position.

Kernels of attention do both as they load a head, so neither needs a kernel of its own, or memory.
H heads, D head size, P positions.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.triton_runtime import tl, triton


class HeadTransform(NamedTuple):
    """The norms (Qwen3) and the angles (RoPE, Su et al., 2021) of a layer's queries and keys; None for what a
    model does not have. Norms come first.

    A head is rotated in two halves: out[: D / 2] = x[: D / 2] * cos - x[D / 2 :] * sin, and
    out[D / 2 :] = x[D / 2 :] * cos + x[: D / 2] * sin, at the cos and sin of the token's position.
    """

    cos: Tensor | None = None  # [P, D / 2] float32
    sin: Tensor | None = None  # [P, D / 2] float32
    query_norm: Tensor | None = None  # [D]
    key_norm: Tensor | None = None  # [D]
    eps: float = 0.0  # of the norms


NO_TRANSFORM = HeadTransform()


def transform_heads_plain(
    heads: Tensor,  # [B, H, D]
    positions: Tensor,  # [B]
    norm: Tensor | None,  # [D], the transform's of queries or of keys
    transform: HeadTransform,
) -> Tensor:  # [B, H, D]
    """The heads as attention takes them, computed in float32 and rounded once: what kernels do as they load
    them."""
    x = heads.float()
    if norm is not None:
        x = F.rms_norm(x, x.shape[-1:], norm.float(), transform.eps)
    if transform.cos is not None and transform.sin is not None:
        cos, sin = (
            table[positions.long(), None] for table in (transform.cos, transform.sin)
        )  # [B, 1, D / 2]
        first, second = x.chunk(2, dim=-1)
        x = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return x.to(heads.dtype)


@triton.jit
def load_turn(cos_ptr, sin_ptr, position, d, D):
    """What numbers d of a head are multiplied by in its rotation, at a position or positions [R, 1]: cos, and
    sin for their partner in the other half, [1 or R, BLOCK_D] each; zeros where there are no angles."""
    if cos_ptr is not None:
        half = D // 2
        is_first = (d < half)[None, :]
        place = position * half + tl.where(d < half, d, d - half)[None, :]
        cos = tl.load(cos_ptr + place, mask=(d < D)[None, :], other=0.0)
        sin = tl.load(sin_ptr + place, mask=(d < D)[None, :], other=0.0)
        sin = tl.where(is_first, -sin, sin)
    else:  # Triton 3.6 hands no None on
        cos, sin = tl.zeros([1, 1], tl.float32), tl.zeros([1, 1], tl.float32)
    return cos, sin


@triton.jit
def load_heads(heads, mask, d, norm_ptr, eps, cos_ptr, cos, sin, D):
    """Heads [R, BLOCK_D], normed and rotated, in the dtype they have in memory.

    heads: where they begin, a pointer or pointers [R, 1]. mask: [R, BLOCK_D]. cos, sin: from `load_turn`.
    """
    loaded = tl.load(heads + d[None, :], mask=mask, other=0.0)
    if norm_ptr is not None or cos_ptr is not None:
        x = loaded.to(tl.float32)
        if norm_ptr is not None:
            rstd = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
            x *= rstd * tl.load(norm_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        if cos_ptr is not None:
            partner = tl.where(d < D // 2, d + D // 2, d - D // 2)
            y = tl.load(heads + partner[None, :], mask=mask, other=0.0).to(tl.float32)
            if norm_ptr is not None:
                y *= rstd * tl.load(norm_ptr + partner, mask=d < D, other=0.0).to(tl.float32)[None, :]
            x = x * cos + y * sin
        loaded = x.to(loaded.dtype)
    return loaded


def check_transform(transform: HeadTransform, like: Tensor) -> None:
    """Raises ValueError naming the first of its tensors that does not fit heads `like` [.., H, D]."""
    D = like.shape[-1]
    if (transform.cos is None) != (transform.sin is None):
        raise ValueError("transform has one of cos and sin, expected both or neither")
    if transform.cos is not None and transform.sin is not None:
        if D % 2:
            raise ValueError(f"transform rotates halves of a head, but a head has {D} numbers")
        table = {"dtype": torch.float32, "device": like.device, "is_contiguous": True}
        check_tensor("transform.cos", transform.cos, shape=("P", D // 2), **table)
        check_tensor("transform.sin", transform.sin, shape=tuple(transform.cos.shape), **table)
    for name, norm in (("query_norm", transform.query_norm), ("key_norm", transform.key_norm)):
        if norm is not None:
            same = {"dtype": like.dtype, "device": like.device, "last_stride_is_1": True}
            check_tensor(f"transform.{name}", norm, shape=(D,), **same)
