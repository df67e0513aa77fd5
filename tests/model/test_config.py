"""Configs: counts of their weights, and heads of another size."""

import pytest
import torch

from labkit.model import GPT2Config
from labkit.model.checkpoint import random_network
from labkit.model.small import SMALL_LLAMA, SMALL_QWEN3

CONFIG = GPT2Config(vocab_size=97, n_positions=32, n_embd=24, n_layer=3, n_head=4, n_inner=50)


@pytest.mark.parametrize("config", [CONFIG, SMALL_LLAMA, SMALL_QWEN3], ids=["gpt2", "llama", "qwen3"])
def test_counts_are_those_of_the_weights(config):
    network = random_network(config, seed=0)
    matrices = [linear.weight for layer in network.layer_modules() for linear in layer.matrices]
    assert config.num_matrix_weights == sum(weight.numel() for weight in matrices)
    keys = network.prefill(torch.tensor([[1]]), torch.tensor([1])).keys
    assert config.kv_values_per_token == 2 * keys.numel()


def test_heads_of_another_size_change_only_the_width():
    changed = CONFIG.with_head_dim(1)
    assert (changed.n_embd, changed.head_dim) == (4, 1)
    assert changed == GPT2Config(97, 32, 4, 3, 4, n_inner=50)
