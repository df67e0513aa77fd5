"""A decoder's weights by what they do: from them alone, by the formulas they stand beside, GPT-2's logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.model import DecoderWeights, GPT2Config
from labkit.model.checkpoint import random_network

SIZES = {
    "tied": GPT2Config(vocab_size=50, n_positions=16, n_embd=12, n_layer=2, n_head=3),
    "untied, another epsilon": GPT2Config(
        50, 16, 12, 3, 2, n_inner=20, layer_norm_epsilon=1e-3, tie_word_embeddings=False
    ),
}


def logits_of(weights: DecoderWeights, input_ids: Tensor, num_heads: int) -> Tensor:
    """Logits [T, V] of one sequence [T]."""

    def norm(x: Tensor, by) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + by.eps).sqrt() * by.weight + by.bias

    def heads(x: Tensor) -> Tensor:
        return x.view(len(x), num_heads, -1).transpose(0, 1)  # [H, T, D]

    x = weights.token_table[input_ids] + weights.position_table[: len(input_ids)]
    for layer in weights.layers:
        query, key, value = map(heads, F.linear(norm(x, layer.attention_norm), *layer.qkv).chunk(3, dim=1))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.linear(attended.transpose(0, 1).flatten(1), *layer.attention_out)
        inner = F.gelu(F.linear(norm(x, layer.mlp_norm), *layer.mlp_in), approximate="tanh")
        x = x + F.linear(inner, *layer.mlp_out)
    return norm(x, weights.final_norm) @ weights.head.T


@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)
def test_gpt2s_weights_by_what_they_do_give_gpt2s_logits(config: GPT2Config):
    network = random_network(config, seed=0)
    like = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=like))
    input_ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    expected = network.prefill(input_ids[None], torch.tensor([len(input_ids)])).last_logits[0]
    torch.testing.assert_close(
        logits_of(network.decoder_weights(), input_ids, config.n_head)[-1], expected, rtol=1e-4, atol=1e-4
    )


def test_they_are_the_networks_own_and_no_copies():
    network = random_network(SIZES["tied"], seed=0)
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    weights = network.decoder_weights()
    tensors = [weights.token_table, weights.position_table, weights.head, *weights.final_norm[:2]]
    for layer in weights.layers:
        tensors += [t for part in layer[:6] for t in part if isinstance(t, Tensor)]
    assert len(tensors) == 3 + 2 + 2 * 12
    assert {t.untyped_storage().data_ptr() for t in tensors} == own
    assert not any(t.requires_grad for t in tensors)
    assert weights.head.data_ptr() == weights.token_table.data_ptr()  # tied
