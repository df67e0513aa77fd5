"""GPT-2 (Radford et al., 2019) in plain PyTorch. Parameter names are Hugging Face's.

Shapes: B batch, T tokens, E embedding, H heads, D head size.
"""

import re

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model.config import GPT2Config
from labkit.model.decoder_weights import DecoderWeights, LayerModules, norm_weights
from labkit.model.network import Attend, CheckpointFormat, Network


class SelfAttention(nn.Module):
    """Causal multi-head self-attention, with one linear layer for queries, keys and values."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.head_dim, self.heads = config.head_dim, (config.n_head, config.n_head)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, layer_idx: int, attend: Attend) -> Tensor:
        """Hidden states [B, T, E], after a LayerNorm, to what attention adds to them."""
        B, T, _ = x.shape
        qkv = self.c_attn(x).view(B, T, 3, -1, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, T, D], views of one tensor
        out = attend(layer_idx, query, key, value)
        return self.c_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with GELU, by its tanh formula, between them."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.inner_dim)
        self.c_proj = nn.Linear(config.inner_dim, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [..., E], after a LayerNorm, to what the MLP adds to them."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """One layer: attention, then the MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = SelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layer_idx: int, attend: Attend) -> Tensor:
        """Hidden states [B, T, E] to those after this layer."""
        x = x + self.attn(self.ln_1(x), layer_idx, attend)
        return x + self.mlp(self.ln_2(x))

    def modules_by_use(self) -> LayerModules:
        """This layer's modules, and whose heads they make."""
        attn, mlp = self.attn, self.mlp
        return LayerModules(attn, attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj, self.ln_1, self.ln_2)


class GPT2(Network):
    """The decoder of Radford et al. (2019)."""

    config: GPT2Config
    config_type = GPT2Config
    checkpoint_format = CheckpointFormat(
        prefix="transformer.",
        token_table="wte.weight",
        head="lm_head.weight",
        transposed=re.compile(r"h\.\d+\.(attn|mlp)\.\w+\.weight"),
        not_weights=re.compile(r"h\.\d+\.attn\.(bias|masked_bias)$"),  # causal masks
    )

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the head and the token table one tensor, if the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.wte(input_ids) + self.wpe(positions)
        for layer_idx, block in enumerate(self.h):
            x = block(x, layer_idx, attend)
        return self.ln_f(x)

    def decoder_weights(self) -> DecoderWeights:
        return DecoderWeights(
            self.wte.weight.detach(),
            self.wpe.weight.detach(),
            tuple(layer.weights() for layer in self.layer_modules()),
            norm_weights(self.ln_f),
            self.lm_head.weight.detach(),
        )

    def layer_modules(self) -> list[LayerModules]:
        return [block.modules_by_use() for block in self.h if isinstance(block, Block)]  # all of them
