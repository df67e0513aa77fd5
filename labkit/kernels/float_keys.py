"""Whole numbers in the order of floats, so that a search can halve what lies between two of them."""

import torch
from torch import Tensor

from labkit.kernels.triton_runtime import tl, triton


def ordered(scores: Tensor) -> Tensor:
    """Whole numbers in the order of float32 numbers: their bits, those of negative ones turned around."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()


@triton.jit
def key_of(logit, element: tl.constexpr):
    """A whole number for a logit, in the order of the logits and without a gap between two of them."""
    if element.primitive_bitwidth == 16:
        bits = logit.to(element).to(tl.int16, bitcast=True).to(tl.int64)
        return tl.where(bits < 0, bits ^ 0x7FFF, bits)
    bits = logit.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def logit_of(key, element: tl.constexpr):
    """The logit of a key, in float32."""
    if element.primitive_bitwidth == 16:
        bits = tl.where(key < 0, key ^ 0x7FFF, key).to(tl.int16)
        return bits.to(element, bitcast=True).to(tl.float32)
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32).to(tl.float32, bitcast=True)
