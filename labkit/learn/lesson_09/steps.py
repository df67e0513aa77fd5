"""Lesson 09: the steps that the reader's part is built on and held against."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import FusedDeviceStep, FusedKernels
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import RowStatistics
from labkit.learn.lesson_09.splits import SplitThenMerge, launch_merge, merge_plain
from labkit.learn.lesson_09.tiles import launch_norm_linear
from labkit.model import Network
from labkit.model.decoder_weights import LayerWeights


class TenKernelStep(FusedDeviceStep):
    """A fused step whose layers are ten kernels each, as on the rung below."""

    def __init__(
        self, slots: DeviceSlots, network: Network, attention: AttendAndWrite, kernels: FusedKernels
    ) -> None:
        super().__init__(slots, network, attention, kernels)
        self._separate = network.decoder_weights().layers

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
