"""The two products of a fused layer by PyTorch's own: for many rows its library multiplies faster than the
kernels here do, and what stands around a product is one small kernel, or a part of it.

M rows, K inputs, N outputs. They take what `norm_linear` and `linear_residual` take, and make the same.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import NormLinear, RowStatistics, normalized
from labkit.kernels.residual_sum import residual_sum_triton, row_norm_plain, row_norm_triton
from labkit.kernels.triton_runtime import check_launchable, tl, triton

OUTPUTS_PER_PROGRAM = 1024


def norm_linear_library(
    x: Tensor, statistics: RowStatistics | None, layer: NormLinear, gelu: bool = False
) -> Tensor:  # [M, N], or [M, N / 2] behind a gate
    """linear(norm(x)) for x [M, K], with GELU by its tanh formula behind it if asked for, or through the
    layer's gate.

    The norm is computed from x, unless the statistics bring its result. Rounds to x's dtype after the norm
    and after the product, where `norm_linear_plain` rounds once, at the end. Raises ValueError for a layer
    that does not fit.
    """
    has_norm = statistics is not None and statistics.normed is not None
    hidden = statistics.normed if has_norm else normalized(x, layer)
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    if gelu and bias is not None and x.is_cuda:  # there GELU is a part of the product, by its tanh formula
        return torch._addmm_activation(bias, hidden, layer.weight.t(), use_gelu=True)
    out = F.linear(hidden, layer.weight, bias)
    if layer.is_gated:
        return silu_gate_triton(out) if x.is_cuda else silu_gate_plain(out)
    return F.gelu(out, approximate="tanh") if gelu else out


def linear_residual_library(
    x: Tensor,  # [M, K]
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N]
    residual: Tensor,  # [M, N]
    *,
    behind: NormLinear | None = None,
) -> tuple[Tensor, RowStatistics | None]:
    """residual + linear(x) [M, N], and no statistics of its rows, which `norm_linear_library` does not need.

    behind: a product whose norm is made of the rows as well, where x is on a GPU: one kernel does both, and
    leaves the statistics, too.
    """
    if behind is not None and x.is_cuda:
        return residual_sum_triton(F.linear(x, weight, bias), residual, behind)
    if bias is None:
        return torch.addmm(residual, x, weight.t()), None
    return F.linear(x, weight, bias).add_(residual), None  # a product takes one of the two


def linear_into_residual(
    x: Tensor,  # [M, K]
    weight: Tensor,  # [N, K]
    offset: Tensor | None,  # [N] float32
    residual: Tensor,  # [M, N]
    *,
    behind: NormLinear,
) -> tuple[Tensor, RowStatistics]:
    """residual + x @ weight.T [M, N], written into the residual by the product itself, and the statistics of
    its rows, with them behind the norm of the product `behind`.

    offset: all biases until here, which a product that adds to its output cannot add as well. The residual
    goes without them, and they are added to its rows wherever a norm reads these. Raises ValueError for an
    offset that does not fit, and PyTorch's errors for a product that does not.
    """
    row_norm = row_norm_triton if x.is_cuda else row_norm_plain
    return residual, row_norm(residual.addmm_(x, weight.t()), offset, behind)


# --- the gate -------------------------------------------------------------------------------------------


def silu_gate_plain(x: Tensor) -> Tensor:  # [M, N] to [M, N / 2]
    """silu(gate) * up for the gates x[:, 0::2] and for what goes through them, x[:, 1::2].

    Plain PyTorch: the oracle of `silu_gate_triton`. Raises ValueError for an x that does not fit.
    """
    check_gated(x)
    gate, up = x.float().unflatten(1, (-1, 2)).unbind(2)
    return (F.silu(gate) * up).to(x.dtype)


def silu_gate_triton(x: Tensor) -> Tensor:
    """silu(gate) * up [M, N / 2] for x [M, N], a gate and what goes through it in turn, in one kernel.

    Raises ValueError for an x that does not fit, and TritonUnavailableError where no kernel runs.
    """
    check_gated(x)
    check_launchable(x.device)
    out = x.new_empty(len(x), x.shape[1] // 2)
    _silu_gate_kernel[(triton.cdiv(out.numel(), OUTPUTS_PER_PROGRAM),)](
        x, out, out.numel(), BLOCK=OUTPUTS_PER_PROGRAM
    )
    return out


@triton.jit
def _silu_gate_kernel(x_ptr, out_ptr, num_outputs, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    inputs = 2 * first + tl.arange(0, 2 * BLOCK)
    # Not 2 * num_outputs, which may pass 2^31:
    x = tl.load(x_ptr + inputs, mask=inputs // 2 < num_outputs, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(x, [BLOCK, 2]))
    outputs = first + tl.arange(0, BLOCK)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + outputs, out.to(out_ptr.dtype.element_ty), mask=outputs < num_outputs)


def check_gated(x: Tensor) -> None:
    """Raises ValueError unless x [M, N] is contiguous and has an even number of columns."""
    check_tensor("x", x, shape=("M", "N"), is_contiguous=True)
    if x.shape[1] % 2:
        raise ValueError(f"x has {x.shape[1]} columns, expected an even number")
