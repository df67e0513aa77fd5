"""The device's work of a step in few kernels (rung 09): five a layer, and five around them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import (
    NormLinear,
    RowStatistics,
    embed_slots_plain,
    embed_slots_triton,
    fold_layer_norm,
    greedy_advance_plain,
    greedy_advance_triton,
    linear_residual_plain,
    linear_residual_triton,
    norm_linear_plain,
    norm_linear_triton,
)
from labkit.kernels.fused_linear import make_split_k_workspace
from labkit.model import GPT2
from labkit.ranges import named_range

VOCABULARY_MULTIPLE = 64  # a product whose sides are multiples of it is several times faster than one odd one


class FusedKernels(NamedTuple):
    """The kernels of a fused step, or their plain twins."""

    embed: Callable[..., tuple[Tensor, RowStatistics]]
    norm_linear: Callable[..., Tensor]
    linear_residual: Callable[..., tuple[Tensor, RowStatistics]]
    greedy_advance: Callable[..., Tensor]


PLAIN = FusedKernels(embed_slots_plain, norm_linear_plain, linear_residual_plain, greedy_advance_plain)
TRITON = FusedKernels(embed_slots_triton, norm_linear_triton, linear_residual_triton, greedy_advance_triton)


def triton_kernels(device: torch.device) -> FusedKernels:
    """`TRITON` with a workspace, made once: a graph remembers its address. One engine's alone, for steps of
    two engines may run at once."""
    workspace = make_split_k_workspace(device)
    return TRITON._replace(linear_residual=partial(linear_residual_triton, workspace=workspace))


class FusedDeviceStep(DeviceStep):
    """A `DeviceStep` in which LayerNorm, bias, GELU, residual and the moving on of slots are parts of kernels
    that run anyway, and in which the vocabulary is padded to a size that the hardware likes."""

    watch_points = ("kernels",)

    def __init__(
        self, slots: DeviceSlots, gpt2: GPT2, attention: AttendAndWrite, kernels: FusedKernels
    ) -> None:
        super().__init__(slots, gpt2, attention)
        self.kernels = kernels
        # Copies of these weights, with the LayerNorm before them put in.
        self._attn = [folded(block.ln_1, block.attn.c_attn) for block in gpt2.h]
        self._fc = [folded(block.ln_2, block.mlp.c_fc) for block in gpt2.h]
        weight = gpt2.lm_head.weight.detach()
        self._lm_head = F.pad(
            weight, (0, 0, 0, -len(weight) % VOCABULARY_MULTIPLE)
        )  # a copy with rows of zeros

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        slots = self.slots
        slot_mapping = slots.slot_mapping[:batch_size]
        self.attention.begin(slots, slot_mapping, max_context_len)
        with named_range("labkit.model.forward"):
            logits = self._logits(slot_mapping)
        with named_range("labkit.sample"):
            if is_greedy:
                return self.kernels.greedy_advance(
                    logits, slot_mapping, slots.last_token_ids, slots.context_lens
                )
            return self.draw_and_advance(logits, slot_mapping)

    def _logits(self, slot_mapping: Tensor) -> Tensor:
        slots, gpt2, kernels = self.slots, self.gpt2, self.kernels
        x, statistics = kernels.embed(
            slot_mapping, slots.last_token_ids, slots.context_lens, gpt2.wte.weight, gpt2.wpe.weight
        )  # [B, E]
        B, E = x.shape
        for layer_idx, block in enumerate(gpt2.h):
            qkv = kernels.norm_linear(x, statistics, self._attn[layer_idx])
            query, key, value = qkv.view(B, 3, block.attn.n_head, -1).unbind(1)  # each [B, H, D]
            attended = self.attention.attend_heads(layer_idx, query, key, value).view(B, E)
            c_proj = block.attn.c_proj
            x, statistics = kernels.linear_residual(attended, c_proj.weight, c_proj.bias, x)
            inner = kernels.norm_linear(x, statistics, self._fc[layer_idx], gelu=True)
            c_proj = block.mlp.c_proj
            x, statistics = kernels.linear_residual(inner, c_proj.weight, c_proj.bias, x)
        hidden = F.layer_norm(x, x.shape[1:], gpt2.ln_f.weight, gpt2.ln_f.bias, gpt2.ln_f.eps)
        return F.linear(hidden, self._lm_head)[:, : gpt2.config.vocab_size]


def folded(norm: nn.LayerNorm, linear: nn.Linear) -> NormLinear:
    return fold_layer_norm(
        norm.weight.detach(), norm.bias.detach(), norm.eps, linear.weight.detach(), linear.bias.detach()
    )
