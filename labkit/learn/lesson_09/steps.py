"""Lesson 09: what the reader's kernels are made of and launched with, and the steps that they are part of."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import FusedDeviceStep, FusedKernels
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import (
    NormLinear,
    RowStatistics,
    norm_linear_plain,
    paged_attention_append_plain,
    triton_status,
)
from labkit.kernels.split_attention import SplitWorkspace, paged_attention_append_split_triton
from labkit.kernels.triton_runtime import INTERPRETED, tl, triton
from labkit.model import Network
from labkit.watch.launches import device_step_of

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
    """x @ weight.T by the reader's kernel, a program per tile of the result."""
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
    tensors = x, statistics.parts, layer.weight, layer.column_sums, layer.bias, out
    sizes = M, N, K, num_parts, statistics.width
    block_p = triton.next_power_of_2(num_parts)
    kernel[grid_of(M, N, tile)](*tensors, layer.eps, *sizes, GELU=gelu, BLOCK_P=block_p, **tile)
    return out


def grid_of(M: int, N: int, tile: Mapping[str, int]) -> tuple[int, int]:
    """Programs of a product [M, N]: rows and columns of tiles."""
    return triton.cdiv(M, tile["BLOCK_M"]), triton.cdiv(N, tile["BLOCK_N"])


# --- attention in two kernels, as flash-decoding has it: partial softmaxes, then the reader's merge ----
# B requests, H heads, D head size; a row is one request's head, row b * H + h.

SPLITS = 4  # programs per row
PIECE = 8  # tokens that a program reads at a time: few, so that a short text has work for all

# (largest [R, SPLITS], totals [R, SPLITS], accs [R, SPLITS, D]) -> attention [R, D]
Merge = Callable[[Tensor, Tensor, Tensor], Tensor]


class SplitThenMerge:
    """A `PagedAttentionAppend` of `SPLITS` programs per row, and a merge of their parts."""

    num_kernels = 2

    def __init__(self, merge: Merge) -> None:
        self.merge = merge
        self.workspace: SplitWorkspace | None = None  # made once, so that a CUDA graph can hold its address

    def __call__(self, *arguments: Any) -> Tensor:
        query, *_, context_lens, _, _ = arguments
        if triton_status().mode == "native":
            self.workspace = self.workspace or SplitWorkspace(
                len(context_lens), *query.shape[1:], query.device
            )
            parts = partial_softmaxes_triton(*arguments[:-1], workspace=self.workspace)
        else:
            parts = partial_softmaxes_plain(*arguments)
        return self.merge(*parts).view_as(query).to(query.dtype)


def partial_softmaxes_triton(*tensors: Tensor, workspace: SplitWorkspace) -> tuple[Tensor, Tensor, Tensor]:
    """What a `Merge` takes, of each program's share of the tokens; the new token is stored.

    By the package's kernel, which leaves the parts in the workspace, and merges them itself for nothing; then
    the largest scores and the totals are copied apart. tensors: those of a `PagedAttentionAppend`.
    """
    paged_attention_append_split_triton(*tensors, workspace, SPLITS, piece=PIECE)
    B, H, D = tensors[0].shape
    accs, pairs = workspace.partial_out[: B * SPLITS], workspace.partial_softmax[: B * SPLITS]
    largest, totals = pairs.view(B * H, SPLITS, 2).permute(2, 0, 1).contiguous()
    return largest, totals, accs.view(B * H, SPLITS, D)


def partial_softmaxes_plain(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What a `Merge` takes, of each program's share of the tokens; the new token is stored.

    Plain PyTorch, for where kernels are interpreted: one by one, these programs would take minutes.
    """
    paged_attention_append_plain(*arguments)  # for the store
    query, key_new, value_new, k_cache, v_cache, block_table, context_lens, slot_mapping, longest = arguments
    B, H, D = query.shape
    block_size = k_cache.shape[2]
    token = torch.arange(longest, device=query.device)
    block, pos = block_table[slot_mapping][:, token // block_size].long(), token % block_size
    keys, values = (
        torch.cat([cache[block, :, pos], new[:, None]], dim=1).float()  # [B, T + 1, H, D], the new token last
        for cache, new in ((k_cache, key_new), (v_cache, value_new))
    )
    program = torch.arange(SPLITS, device=query.device)[:, None]
    is_past = token < context_lens[slot_mapping][:, None]  # [B, T]
    mine = F.pad(is_past[:, None] & (token // PIECE % SPLITS == program), (0, 1))  # [B, SPLITS, T + 1]
    mine[:, 0, -1] = True
    scores = torch.einsum("bhd,bthd->bht", query.float(), keys) * D**-0.5
    scores = scores[:, :, None].masked_fill(~mine[:, None], -torch.inf)  # [B, H, SPLITS, T + 1]
    largest = scores.amax(-1)
    weights = (scores - largest.clamp(min=torch.finfo().min)[..., None]).exp()
    values = values.masked_fill(~mine.any(1)[:, :, None, None], 0)  # where no token is, there may be NaN
    accs = torch.einsum("bhst,bthd->bhsd", weights, values)
    return largest.view(B * H, SPLITS), weights.sum(-1).view(B * H, SPLITS), accs.view(B * H, SPLITS, D)


def launch_merge(kernel: Any, largest: Tensor, totals: Tensor, accs: Tensor) -> Tensor:
    """The parts of each row in one, [R, D], by a program of the reader's kernel, if Triton can run."""
    if triton_status().mode == "off":
        return merge_plain(largest, totals, accs)
    num_rows, num_parts, D = accs.shape
    out = accs.new_full((num_rows, D), torch.nan)
    blocks = {"BLOCK_S": triton.next_power_of_2(num_parts), "BLOCK_D": triton.next_power_of_2(D)}
    kernel[(num_rows,)](largest, totals, accs, out, num_parts, D, **blocks)
    return out


def merge_plain(largest: Tensor, totals: Tensor, accs: Tensor) -> Tensor:
    """The parts of each row in one, in plain PyTorch."""
    weights = (largest - largest.amax(1, keepdim=True)).exp()  # [R, SPLITS]
    return (weights[:, :, None] * accs).sum(1) / (weights * totals).sum(1, keepdim=True)


# --- the steps that the reader's part is built on and held against -------------------------------------


class TenKernelStep(FusedDeviceStep):
    """A fused step whose layers are ten kernels each, as on the rung below."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._separate = self.network.decoder_weights().layers

    def layer(self, layer_idx: int, x: Tensor, statistics: RowStatistics) -> tuple[Tensor, RowStatistics]:
        """One layer by PyTorch's operators. Nothing reads the statistics of its rows, so they stay."""
        weights = self._separate[layer_idx]
        qkv = F.linear(F.layer_norm(x, x.shape[1:], *weights.attention_norm), *weights.qkv)
        x = x + F.linear(self.attend(layer_idx, qkv), *weights.attention_out)
        inner = F.linear(F.layer_norm(x, x.shape[1:], *weights.mlp_norm), *weights.mlp_in)
        return x + F.linear(F.gelu(inner, approximate="tanh"), *weights.mlp_out), statistics


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


# The kernels of a fused layer, in order, each with the operations that it replaces.
STANDS_FOR = (
    ("norm_linear", ("layer_norm", "linear")),
    ("attention", ("attention",)),
    ("linear_residual", ("linear", "add")),
    ("norm_linear, GELU", ("layer_norm", "linear", "gelu")),
    ("linear_residual", ("linear", "add")),
)


def whose_kernels(engine: InferenceEngine) -> str:
    """Which of a fused step's two kernels of this lesson are the reader's, in a sentence."""
    step = device_step_of(engine)
    norm_linear, attention = step.kernels.norm_linear, step.attention.attention
    mine = {
        "norm_linear": getattr(norm_linear, "func", None) is launch_norm_linear,
        "merge": isinstance(attention, SplitThenMerge),
    }
    return ", ".join(f"{name}: {'yours' if is_mine else 'not yours'}" for name, is_mine in mine.items())
