"""Lesson 09: steps of fused kernels, and the tiles that kernels load and store."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import FusedDeviceStep, FusedKernels
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import NormLinear, RowStatistics, norm_linear_plain, triton_status
from labkit.kernels.triton_runtime import INTERPRETED, tl, triton
from labkit.learn.lesson_09.splits import SplitThenMerge, launch_merge, merge_plain
from labkit.model import Network
from labkit.model.decoder_weights import LayerWeights

# --- tiles of matrices for the reader's kernels, and how their matrix products are launched ------------

# A program makes 16 rows and 128 columns of the result, 64 inputs at a time.
TILE = {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_K": 64}
# In the interpreter a wide program takes as long as a narrow one, so an engine there has few.
WIDE_TILE = {"BLOCK_M": 16, "BLOCK_N": 1024, "BLOCK_K": 256}


@triton.jit
def load_tile(matrix_ptr, rows, columns, num_rows, num_columns):
    """The numbers of a matrix at these rows and columns; 0 outside of it."""
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    return tl.load(matrix_ptr + rows[:, None] * num_columns + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_tile(matrix_ptr, rows, columns, num_rows, num_columns, numbers):
    """Store numbers at these rows and columns of a matrix; those outside of it are left out."""
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    rounded = numbers.to(matrix_ptr.dtype.element_ty)
    tl.store(matrix_ptr + rows[:, None] * num_columns + columns[None, :], rounded, mask=mask)


@triton.jit
def load_parts(parts_ptr, rows, num_rows, K, num_parts, width, BLOCK_P: tl.constexpr):
    """What `RowStatistics` holds of these rows: means and squared distances, [rows, BLOCK_P] each, and how
    many columns each part has, [1, BLOCK_P]. A place behind the last part has 0 columns."""
    p = tl.arange(0, BLOCK_P)
    mask = (rows < num_rows)[:, None] & (p < num_parts)[None, :]
    place = parts_ptr + (rows[:, None] * num_parts + p[None, :]) * 2
    means = tl.load(place, mask=mask, other=0.0)
    squares = tl.load(place + 1, mask=mask, other=0.0)
    counts = tl.where(p < num_parts, tl.minimum(K - p * width, width), 0).to(tl.float32)
    return means, squares, counts[None, :]


@triton.jit
def gelu(x):
    """GELU by its tanh formula: 0.5 * (1 + tanh(u)) is sigmoid(2 * u); 1.595... is 2 * sqrt(2 / pi)."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


def launch_product(kernel: Any, x: Tensor, weight: Tensor, tile: Mapping[str, int] = TILE) -> Tensor:
    """x @ weight.T by the reader's kernel, a program per tile of the result.

    Where Triton cannot run, PyTorch's own product stands for it.
    """
    if triton_status().mode == "off":
        return x @ weight.T
    (M, K), N = x.shape, len(weight)
    out = x.new_full((M, N), torch.nan)
    kernel[grid_of(M, N, tile)](x, weight, out, M, N, K, **tile)
    return out


def launch_norm_linear(
    kernel: Any,
    x: Tensor,
    statistics: RowStatistics,
    layer: NormLinear,
    gelu: bool = False,
    *,
    tile: Mapping[str, int] = WIDE_TILE if INTERPRETED else TILE,
) -> Tensor:
    """linear(layer_norm(x)) by the reader's kernel, with GELU behind it if asked for.

    Takes what `norm_linear_plain` takes, and that stands for the kernel where Triton cannot run.
    """
    if triton_status().mode == "off":
        return norm_linear_plain(x, statistics, layer, gelu)
    (M, K), N = x.shape, len(layer.weight)
    num_parts = statistics.parts.shape[1]
    out = x.new_full((M, N), torch.nan)
    kernel[grid_of(M, N, tile)](
        x,
        statistics.parts,
        layer.weight,
        layer.column_sums,
        layer.bias,
        out,
        layer.eps,
        M,
        N,
        K,
        num_parts,
        statistics.width,
        GELU=gelu,
        BLOCK_P=triton.next_power_of_2(num_parts),
        **tile,
    )
    return out


def grid_of(M: int, N: int, tile: Mapping[str, int]) -> tuple[int, int]:
    """Programs of a product [M, N]: rows and columns of tiles."""
    return triton.cdiv(M, tile["BLOCK_M"]), triton.cdiv(N, tile["BLOCK_N"])


# --- the steps that the reader's part is built on and held against -------------------------------------


class TenKernelStep(FusedDeviceStep):
    """A fused step whose layers are ten kernels each, as on the rung below."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._separate = self.network.decoder_weights().layers

    def layer(self, layer_idx: int, x: Tensor, statistics: RowStatistics) -> tuple[Tensor, RowStatistics]:
        """One layer by PyTorch's operators. Nothing reads the statistics of its rows, so they stay."""
        return layer_in_ten(self, self._separate[layer_idx], layer_idx, x), statistics


def layer_in_ten(step: FusedDeviceStep, weights: LayerWeights, layer_idx: int, x: Tensor) -> Tensor:
    """A layer's output for x [B, E] by PyTorch's operators and the step's attention."""
    qkv = F.linear(F.layer_norm(x, x.shape[1:], *weights.attention_norm), *weights.qkv)
    x = x + F.linear(step.attend(layer_idx, qkv), *weights.attention_out)
    inner = F.linear(F.layer_norm(x, x.shape[1:], *weights.mlp_norm), *weights.mlp_in)
    return x + F.linear(F.gelu(inner, approximate="tanh"), *weights.mlp_out)


def with_mine(
    attention: AttendAndWrite, kernels: FusedKernels, norm_linear_kernel: Any, merge_kernel: Any
) -> tuple[AttendAndWrite, FusedKernels]:
    """A step's attention and kernels, with the reader's two in their places."""
    split = SplitThenMerge(partial(launch_merge, merge_kernel))
    norm_linear = partial(launch_norm_linear, norm_linear_kernel)
    return AttendAndWrite(attention.kv_manager, split), kernels._replace(norm_linear=norm_linear)


class ForgetsAPart(FusedDeviceStep):
    """A fused step with split attention whose merge leaves out the last part."""

    def __init__(
        self, slots: DeviceSlots, network: Network, attention: AttendAndWrite, kernels: FusedKernels
    ) -> None:
        split = SplitThenMerge(lambda *parts: merge_plain(*(part[:, :-1] for part in parts)))
        super().__init__(slots, network, AttendAndWrite(attention.kv_manager, split), kernels)
