"""GPT2Config: the neutral names that the engine reads, and what config.json may say."""

from labkit.model import GPT2, GPT2Config

CONFIG = GPT2Config(vocab_size=97, n_positions=32, n_embd=24, n_layer=3, n_head=4, n_inner=50)
RAW = {"model_type": "gpt2", "vocab_size": 97, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 4}


def test_neutral_names_are_the_same_numbers():
    assert (CONFIG.num_layers, CONFIG.num_heads, CONFIG.head_dim) == (3, 4, 6)
    assert (CONFIG.max_positions, CONFIG.hidden_size, CONFIG.model_type) == (32, 24, "gpt2")


def test_counts_are_those_of_the_weights():
    matrices = [p for name, p in GPT2(CONFIG).h.named_parameters() if p.dim() == 2]
    assert CONFIG.num_matrix_weights == sum(p.numel() for p in matrices) == 3 * (4 * 24 * 24 + 2 * 24 * 50)
    assert CONFIG.kv_values_per_token == 2 * 3 * 4 * 6


def test_the_mlp_is_four_times_as_wide_unless_it_is_said():
    assert CONFIG.inner_dim == 50
    assert GPT2Config.from_hf(RAW).inner_dim == 4 * 24


def test_heads_of_another_size_change_only_the_width():
    changed = CONFIG.with_head_dim(1)
    assert (changed.n_embd, changed.head_dim) == (4, 1)
    assert changed == GPT2Config(97, 32, 4, 3, 4, n_inner=50)
