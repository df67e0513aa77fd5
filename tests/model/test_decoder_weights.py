"""A decoder's weights by what they do are the network's own. What they do, the rungs' tokens show."""

from torch import Tensor

from labkit.model import GPT2Config
from labkit.model.checkpoint import random_network

TIED = GPT2Config(vocab_size=50, n_positions=16, n_embd=12, n_layer=2, n_head=3, layer_norm_epsilon=1e-3)


def test_they_are_the_networks_own_and_no_copies():
    network = random_network(TIED, seed=0)
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    weights = network.decoder_weights()
    tensors = [weights.token_table, weights.position_table, weights.head, *weights.final_norm[:2]]
    for layer in weights.layers:
        tensors += [t for part in layer[:6] for t in part if isinstance(t, Tensor)]
    assert len(tensors) == 3 + 2 + 2 * 12
    assert {t.untyped_storage().data_ptr() for t in tensors} == own
    assert not any(t.requires_grad for t in tensors)
    assert weights.head.data_ptr() == weights.token_table.data_ptr()  # tied
    norms = [norm for layer in weights.layers for norm in (layer.attention_norm, layer.mlp_norm)]
    assert {norm.eps for norm in [weights.final_norm, *norms]} == {1e-3}
