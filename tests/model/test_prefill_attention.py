"""Attention of a prefill, against a softmax written out: causal, and over a padded past."""

import pytest
import torch
from torch import Tensor

from labkit.model.prefill_attention import CausalAttention, PastAttention, PastKV

B, H, T, P, D = 2, 3, 4, 5, 6
LENGTHS = [5, 2]  # of the pasts


def written_out(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query [D] over the keys and values [n, D] that it sees."""
    weights = (keys.double() @ query.double() / D**0.5).softmax(0)
    return (weights @ values.double()).float()


@pytest.fixture
def qkv() -> list[Tensor]:
    like = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, T, D, generator=like) for _ in range(3)]


def test_a_token_sees_itself_and_those_before_it(qkv):
    query, key, value = qkv
    out = CausalAttention()(0, query, key, value)
    for b, h, t in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(T)):
        expected = written_out(query[b, h, t], key[b, h, : t + 1], value[b, h, : t + 1])
        torch.testing.assert_close(out[b, h, t], expected)


def test_with_a_past_it_sees_what_is_real_of_that_first(qkv):
    query, key, value = qkv
    like = torch.Generator().manual_seed(1)
    past = PastKV(
        torch.randn(2, B, H, P, D, generator=like),
        torch.randn(2, B, H, P, D, generator=like),
        torch.tensor(LENGTHS),
    )
    out = PastAttention(past, T)(1, query, key, value)  # layer 1 of two
    for b, h, t in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(T)):
        keys = torch.cat([past.keys[1, b, h, : LENGTHS[b]], key[b, h, : t + 1]])
        values = torch.cat([past.values[1, b, h, : LENGTHS[b]], value[b, h, : t + 1]])
        torch.testing.assert_close(out[b, h, t], written_out(query[b, h, t], keys, values))


def test_each_layers_new_keys_and_values_are_kept_in_order(qkv):
    query, key, value = qkv
    past = PastKV(torch.zeros(2, B, H, P, D), torch.zeros(2, B, H, P, D), torch.tensor(LENGTHS))
    for attention in (CausalAttention(), PastAttention(past, T)):
        attention(0, query, key, value)
        attention(1, query, value, key)
        assert attention.keys[0] is attention.values[1] is key
        assert attention.values[0] is attention.keys[1] is value
        assert len(attention.keys) == len(attention.values) == 2
