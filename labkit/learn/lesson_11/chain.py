"""Lesson 11: a layer's kernels as recorded: how long each one's bytes take, and how long it waits."""

from collections.abc import Sequence
from typing import NamedTuple

from labkit.bench.limit import on_paper
from labkit.results import TracedStep

KERNELS = {  # by a part of the name that a GPU reports
    "norm_linear": "norm_linear",
    "linear_residual": "linear_residual",
    "attn_append": "attention",
    "embed_slots": "embed",
}


class KernelTimes(NamedTuple):
    """Microseconds of a kernel: how long its weights take at the memory's rate, its keys and values, and how
    long it does neither."""

    name: str
    weights_us: float
    cache_us: float
    waits_us: float

    @property
    def bytes_us(self) -> float:
        return self.weights_us + self.cache_us

    @property
    def us(self) -> float:
        return self.bytes_us + self.waits_us


def layer_times(step: TracedStep, bandwidth: float) -> list[KernelTimes]:
    """The five kernels of one layer of GPT-2 in float16, in order, from a recorded step.

    A trace has the mean of kernels of one name, so both `norm_linear` take the same time, and both
    `linear_residual`; what their bytes take, at `bandwidth` bytes per second, is each one's own.
    """
    us = kernel_us(step)
    network = on_paper()
    layer = network.decoder_weights().layers[0]
    values = network.config.kv_values_per_token // len(network.decoder_weights().layers)
    cache_us = step.batch_size * (step.context_len + 1) * values * network.dtype.itemsize / bandwidth * 1e6

    def times(name: str, weight_bytes: int, cache_us: float = 0.0) -> KernelTimes:
        weights_us = 1e6 * weight_bytes / bandwidth
        return KernelTimes(name, weights_us, cache_us, max(0.0, us[name] - weights_us - cache_us))

    def product(name: str, linear: Sequence) -> KernelTimes:
        return times(name, sum(t.numel() * t.element_size() for t in linear if t is not None))

    return [
        product("norm_linear", layer.qkv),
        times("attention", 0, cache_us),
        product("linear_residual", layer.attention_out),
        product("norm_linear", layer.mlp_in),
        product("linear_residual", layer.mlp_out),
    ]


def kernel_us(step: TracedStep) -> dict[str, float]:
    """Mean microseconds of a fused step's own kernels in a trace, by the names of `FusedKernels`."""
    return {
        name: kernel.us / kernel.count
        for kernel in step.kernels
        for part, name in KERNELS.items()
        if part in kernel.name
    }
