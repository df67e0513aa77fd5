"""How GPT-2's weights are named in a file: which are layers, which are turned, which are none."""

import pytest

from labkit.model import GPT2


@pytest.mark.parametrize(
    ("name", "layer"),
    [("h.0.ln_1.weight", "0"), ("h.11.attn.c_attn.bias", "11"), ("ln_f.weight", None), ("wte.weight", None)],
)
def test_a_layers_tensor_names_its_layer(name, layer):
    found = GPT2.checkpoint_format.layer.match(name)
    assert (found and found[1]) == layer


@pytest.mark.parametrize(
    ("name", "transposed", "not_a_weight"),
    [
        ("h.0.attn.c_attn.weight", True, False),
        ("h.10.mlp.c_proj.weight", True, False),
        ("h.0.attn.c_attn.bias", False, False),
        ("h.0.ln_1.weight", False, False),
        ("lm_head.weight", False, False),
        ("h.3.attn.bias", False, True),
        ("h.3.attn.masked_bias", False, True),
    ],
)
def test_matrices_that_are_stored_turned_and_buffers_are_told_by_their_names(name, transposed, not_a_weight):
    names = GPT2.checkpoint_format
    assert (names.transposed.fullmatch(name) is not None) == transposed
    assert (names.not_weights.fullmatch(name) is not None) == not_a_weight


def test_the_tensors_that_may_be_tied_are_a_networks_own():
    names = GPT2.checkpoint_format
    assert (names.prefix, names.token_table, names.head) == ("transformer.", "wte.weight", "lm_head.weight")
