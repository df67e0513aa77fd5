"""The time of one layer's attention: the bytes that it is held against."""

import pytest
import torch

from labkit.bench.attention_time import time_attention


@pytest.mark.parametrize(("batch_size", "context_len"), [(1, 64), (3, 20)])
def test_the_bytes_of_attention_are_those_of_the_keys_and_of_the_values(batch_size, context_len):
    (made,) = time_attention(batch_size, context_len, torch.device("cpu"), repeats=2, rounds=1)
    assert made.num_bytes == (1 + 1) * batch_size * context_len * 12 * 64 * 4  # GPT-2's heads, in float32
    assert made.rate == made.num_bytes / (1e-6 * made.us) and len(made.seconds) == 2
