"""Lesson 09: attention in parts, as a kernel and in plain PyTorch, which the lesson's gate merges."""

import pytest
import torch

from labkit.kernels.split_attention import SplitWorkspace
from labkit.learn.lesson_09 import steps

LENGTHS = (0, 3, 8, 37, 100)


def attention_case(lengths, H=2, D=16, block_size=16):
    """Arguments of one layer's attention, by name, for requests with so many tokens in the cache."""
    generator = torch.Generator().manual_seed(0)
    B, M = len(lengths), max(lengths) // block_size + 1
    shapes = {
        **dict.fromkeys(("query", "key_new", "value_new"), (B, H, D)),
        **dict.fromkeys(("k_cache_layer", "v_cache_layer"), (B * M, H, block_size, D)),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} | {
        "block_table": torch.randperm(B * M, generator=generator).view(B, M).int(),
        "context_lens": torch.tensor(lengths, dtype=torch.int32),
        "slot_mapping": torch.arange(B),
    }


@pytest.mark.slow
def test_the_kernel_makes_the_parts_of_its_plain_twin():
    case = attention_case(LENGTHS)
    case["context_lens"][1] = -1  # pads the batch: nothing is stored for it
    mine, plain = ({name: t.clone() for name, t in case.items()} for _ in range(2))
    workspace = SplitWorkspace(len(LENGTHS), 2, 16, torch.device("cpu"))
    parts = steps.partial_softmaxes_triton(*mine.values(), workspace=workspace)
    expected = steps.partial_softmaxes_plain(*plain.values(), 100)
    torch.testing.assert_close(steps.merge_plain(*parts), steps.merge_plain(*expected), atol=1e-5, rtol=1e-5)
    for _, totals, _ in (parts, expected):
        assert [int((row > 0).sum()) for row in totals.view(5, 2, 4)[:, 0]] == [1, 1, 1, 4, 4]
    for name in ("k_cache_layer", "v_cache_layer"):
        assert torch.equal(mine[name], plain[name])
