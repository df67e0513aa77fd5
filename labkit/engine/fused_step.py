"""The device's work of a step in few kernels (rung 09): five a layer, and four around them."""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from labkit.engine.device_slots import DeviceSlots
from labkit.engine.resident_step import AttendAndWrite, DeviceStep
from labkit.kernels import (
    SplitWorkspace,
    embed_slots_plain,
    embed_slots_triton,
    greedy_advance_plain,
    greedy_advance_triton,
    layer_norm_linear_plain,
    layer_norm_linear_triton,
    linear_residual_plain,
    linear_residual_triton,
    num_splits,
    paged_attention_append_split_triton,
)
from labkit.kvcache import KVBlockManager
from labkit.model import GPT2
from labkit.ranges import named_range

VOCABULARY_MULTIPLE = 64  # a product whose sides are multiples of it is several times faster than one odd one


class FusedKernels(NamedTuple):
    """The kernels of a fused step, or their plain twins."""

    embed: Callable[..., Tensor]
    layer_norm_linear: Callable[..., Tensor]
    linear_residual: Callable[..., Tensor]
    greedy_advance: Callable[..., Tensor]


PLAIN = FusedKernels(embed_slots_plain, layer_norm_linear_plain, linear_residual_plain, greedy_advance_plain)
TRITON = FusedKernels(
    embed_slots_triton, layer_norm_linear_triton, linear_residual_triton, greedy_advance_triton
)


class SplitAttention:
    """`paged_attention_append_split_triton` with a workspace, and as many splits as fill the GPU."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        _, _, num_heads, block_size, head_dim = kv_manager.k_cache.shape
        device = kv_manager.k_cache.device
        self._workspace = SplitWorkspace(max_batch_size, num_heads, head_dim, device)
        # Of the longest possible sequence: a graph cannot ask how long they are.
        self._max_tokens = kv_manager.max_blocks_per_seq * block_size

    def __call__(
        self,
        query: Tensor,
        key_new: Tensor,
        value_new: Tensor,
        k_cache_layer: Tensor,
        v_cache_layer: Tensor,
        block_table: Tensor,
        context_lens: Tensor,
        slot_mapping: Tensor,
        max_context_len: int,
    ) -> Tensor:
        B, H, _ = query.shape
        return paged_attention_append_split_triton(
            query,
            key_new,
            value_new,
            k_cache_layer,
            v_cache_layer,
            block_table,
            context_lens,
            slot_mapping,
            self._workspace,
            num_splits(B, H, self._max_tokens),
        )


class FusedDeviceStep(DeviceStep):
    """A `DeviceStep` in which LayerNorm, bias, GELU, residual and the moving on of slots are parts of kernels
    that run anyway, and in which the vocabulary is padded to a size that the hardware likes."""

    def __init__(
        self, slots: DeviceSlots, gpt2: GPT2, attention: AttendAndWrite, kernels: FusedKernels
    ) -> None:
        super().__init__(slots, gpt2, attention)
        self.kernels = kernels
        weight = gpt2.lm_head.weight.detach()
        padding = -len(weight) % VOCABULARY_MULTIPLE
        self._lm_head = F.pad(weight, (0, 0, 0, padding))  # a copy: rows of zeros behind the vocabulary

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
        x = kernels.embed(
            slot_mapping, slots.last_token_ids, slots.context_lens, gpt2.wte.weight, gpt2.wpe.weight
        )  # [B, E]
        B, E = x.shape
        for layer_idx, block in enumerate(gpt2.h):
            ln_1, c_attn, ln_2, c_fc = block.ln_1, block.attn.c_attn, block.ln_2, block.mlp.c_fc
            qkv = kernels.layer_norm_linear(x, ln_1.weight, ln_1.bias, ln_1.eps, c_attn.weight, c_attn.bias)
            query, key, value = qkv.view(B, 3, block.attn.n_head, -1).unbind(1)  # each [B, H, D]
            attended = self.attention.attend_heads(layer_idx, query, key, value).view(B, E)
            x = kernels.linear_residual(attended, block.attn.c_proj.weight, block.attn.c_proj.bias, x)
            inner = kernels.layer_norm_linear(
                x, ln_2.weight, ln_2.bias, ln_2.eps, c_fc.weight, c_fc.bias, gelu=True
            )
            x = kernels.linear_residual(inner, block.mlp.c_proj.weight, block.mlp.c_proj.bias, x)
        hidden = F.layer_norm(x, x.shape[1:], gpt2.ln_f.weight, gpt2.ln_f.bias, gpt2.ln_f.eps)
        return F.linear(hidden, self._lm_head)[:, : gpt2.config.vocab_size]
