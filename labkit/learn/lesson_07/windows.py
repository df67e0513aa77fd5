"""Lesson 07: models whose layers hold different tokens."""

from collections.abc import Sequence


def blocks_by_window(windows: Sequence[int | None], num_tokens: int, block_size: int) -> tuple[int, int]:
    """Blocks that a sequence needs in a model whose layers see only a window of tokens, summed over the
    layers: with a table per layer, and with one table for all layers. A window of None is the whole text; of
    0, a layer that uses another layer's keys and values."""
    each = []
    for window in windows:
        first = 0 if window is None else max(0, num_tokens - window) // block_size
        each.append(0 if window == 0 else -(-num_tokens // block_size) - first)
    return sum(each), len(each) * max(each)
