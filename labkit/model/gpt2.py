"""GPT-2 in plain PyTorch. It knows nothing of paging: how a query sees the past is handed in.

Shapes: B batch, T tokens, E embedding, H heads, D head size, L layers, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.model.config import GPT2Config

# Not cuDNN's: it makes a plan for every new shape, in each thread anew, and that takes longer than a prefill.
PREFILL_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# (layer_idx, query, key, value), each [B, H, T, D] -> [B, H, T, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class PastKV(NamedTuple):
    """Keys and values computed earlier, one row a prompt, padded at the end to a common length P."""

    keys: Tensor  # [L, B, H, P, D]
    values: Tensor  # [L, B, H, P, D]
    lengths: Tensor  # [B]


class Prefilled(NamedTuple):
    """What a prefill leaves: the logits after each prompt's last token, and every new key and value."""

    last_logits: Tensor  # [B, V]
    keys: Tensor  # [L, B, H, T, D]; row b is meaningful up to its length
    values: Tensor  # [L, B, H, T, D]


class SelfAttention(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, layer_idx: int, attend: Attend) -> Tensor:
        B, T, E = x.shape
        qkv = self.c_attn(x).view(B, T, 3, self.n_head, E // self.n_head)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, T, D], views of one tensor
        out = attend(layer_idx, query, key, value)
        return self.c_proj(out.transpose(1, 2).reshape(B, T, E))


class MLP(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.inner_dim)
        self.c_proj = nn.Linear(config.inner_dim, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = SelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layer_idx: int, attend: Attend) -> Tensor:
        x = x + self.attn(self.ln_1(x), layer_idx, attend)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """The decoder of Radford et al. (2019). Parameter names are Hugging Face's."""

    watch_points = ("decode_one_token",)

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [B, T, E] of tokens [B, T] at positions [B, T]."""
        x = self.wte(input_ids) + self.wpe(positions)
        for layer_idx, block in enumerate(self.h):
            x = block(x, layer_idx, attend)
        return self.ln_f(x)

    @torch.inference_mode()
    def prefill(self, input_ids: Tensor, lengths: Tensor, past: PastKV | None = None) -> Prefilled:
        """Run ragged prompts in one batch.

        input_ids [B, T] is padded at the end; lengths [B] counts each row's real tokens. Pads stand
        after every real token, so causal attention never lets a real token see one. With `past`,
        row b continues after past.lengths[b] tokens whose keys and values are given.
        """
        B, T = input_ids.shape
        positions = torch.arange(T, device=input_ids.device).expand(B, T)
        if past is not None:
            positions = positions + past.lengths[:, None]
        positions = positions.clamp(max=self.config.n_positions - 1)  # pads alone can lie past the end
        attention = CausalAttention() if past is None else PastAttention(past, T)
        with sdpa_kernel(PREFILL_BACKENDS):
            hidden = self(input_ids, positions, attention)
        last = hidden[torch.arange(B, device=hidden.device), lengths - 1]  # [B, E]
        return Prefilled(self.lm_head(last), torch.stack(attention.keys), torch.stack(attention.values))

    @torch.inference_mode()
    def decode_one_token(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Logits [B, V] after one more token each: input_ids [B] at positions [B]."""
        hidden = self(input_ids[:, None], positions[:, None], attend)  # [B, 1, E]
        return self.lm_head(hidden[:, 0])


class CausalAttention:
    """Attention over the prompt itself; keeps each layer's keys and values for the cache."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.append(key)
        self.values.append(value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class PastAttention(CausalAttention):
    """Attention over cached tokens and the prompt's own."""

    def __init__(self, past: PastKV, num_new: int) -> None:
        super().__init__()
        self.past = past
        B, P = len(past.lengths), past.keys.shape[3]
        device = past.lengths.device
        in_past = torch.arange(P, device=device) < past.lengths[:, None]  # [B, P]
        causal = torch.ones(num_new, num_new, dtype=torch.bool, device=device).tril()
        self.visible = torch.cat(
            [in_past[:, None].expand(B, num_new, P), causal.expand(B, num_new, num_new)], dim=2
        )[:, None]  # [B, 1, T, P + T]

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.append(key)
        self.values.append(value)
        all_keys = torch.cat([self.past.keys[layer_idx], key], dim=2)  # [B, H, P + T, D]
        all_values = torch.cat([self.past.values[layer_idx], value], dim=2)
        return F.scaled_dot_product_attention(query, all_keys, all_values, attn_mask=self.visible)
