"""GPT2Config: counts of its weights, and heads of another size."""

from labkit.model import GPT2, GPT2Config

CONFIG = GPT2Config(vocab_size=97, n_positions=32, n_embd=24, n_layer=3, n_head=4, n_inner=50)


def test_counts_are_those_of_the_weights():
    matrices = [p for name, p in GPT2(CONFIG).h.named_parameters() if p.dim() == 2]
    assert CONFIG.num_matrix_weights == sum(p.numel() for p in matrices) == 3 * (4 * 24 * 24 + 2 * 24 * 50)
    assert CONFIG.kv_values_per_token == 2 * 3 * 4 * 6


def test_heads_of_another_size_change_only_the_width():
    changed = CONFIG.with_head_dim(1)
    assert (changed.n_embd, changed.head_dim) == (4, 1)
    assert changed == GPT2Config(97, 32, 4, 3, 4, n_inner=50)
