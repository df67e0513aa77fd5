"""GPT2Config: counts of its weights."""

from labkit.model import GPT2, GPT2Config

CONFIG = GPT2Config(vocab_size=97, n_positions=32, n_embd=24, n_layer=3, n_head=4, n_inner=50)


def test_counts_are_those_of_the_weights():
    matrices = [p for name, p in GPT2(CONFIG).h.named_parameters() if p.dim() == 2]
    assert CONFIG.num_matrix_weights == sum(p.numel() for p in matrices) == 3 * (4 * 24 * 24 + 2 * 24 * 50)
    assert CONFIG.kv_values_per_token == 2 * 3 * 4 * 6
