"""How much memory the two kinds of KV cache set aside."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.show.style import BLUE, PALE, RED, figure, styled


@styled
def draw_reservation(lengths: Sequence[int], max_length: int, block_size: int) -> Figure:
    """Draw the slots that are set aside for sequences of these lengths: contiguous, a row of `max_length`
    slots per sequence, or paged, in blocks."""
    fig, axes = figure(2.6)
    used = np.array(lengths)
    paged = -(-used // block_size) * block_size
    names = ["contiguous:\nthe longest possible", f"paged:\nblocks of {block_size}"]
    for y, reserved in enumerate((np.full_like(used, max_length), paged)):
        axes.barh(y, reserved.sum(), color=PALE, edgecolor=RED, hatch="///", height=0.55, lw=0.8)
        axes.barh(y, used.sum(), color=BLUE, height=0.55)
        share = f"{100 * used.sum() / reserved.sum():.0f} % used"
        axes.text(reserved.sum(), y, f"  {share}", va="center")
    axes.set_yticks([0, 1], names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max_length * len(used))
    axes.set_xlabel(f"KV slots set aside for {len(used)} requests (one slot: one token in every layer)")
    axes.set_title("Filled: holds a token. Hatched: set aside and empty")
    return fig
