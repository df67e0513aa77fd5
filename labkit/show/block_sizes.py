"""What the size of a block costs."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure

from labkit.show.style import BLUE, INK, ORANGE, figure, styled


class BlockSize(Protocol):
    """A size of blocks, in tokens; the share of slots that stay empty; and entries of a row."""

    block_size: int
    share: float
    row_entries: int


@styled
def draw_block_sizes(sizes: Sequence[BlockSize], chosen: int) -> Figure:
    """Draw the share of empty slots and the length of a row of the block table over the size of a
    block, and mark one of the sizes, `chosen`."""
    (mark,) = (size for size in sizes if size.block_size == chosen)
    xs = [size.block_size for size in sizes]
    fig, axes = figure(2.9, ncols=2, sharex=True)
    panels = (
        ([100 * size.share for size in sizes], 100 * mark.share, BLUE, "{:.0f} % empty"),
        ([size.row_entries for size in sizes], mark.row_entries, ORANGE, "{} entries"),
    )
    for panel, (ys, at, colour, words) in zip(axes, panels, strict=True):
        panel.plot(xs, ys, "o-", color=colour, lw=1.5, markersize=4)
        panel.plot([chosen], [at], "o", color=colour, markersize=10, markeredgecolor=INK)
        panel.annotate(
            f"blocks of {chosen}:\n" + words.format(at),
            (chosen, at),
            xytext=(0.5, 0.72),
            textcoords="axes fraction",
            ha="center",
            arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
        )
        panel.set_xscale("log", base=2)
        panel.set_xticks(xs, [f"{x:,}" for x in xs], fontsize=8)
        panel.set_xlabel("block size (tokens)")
        panel.set_ylim(bottom=0)
    axes[0].set_ylim(0, 100)
    axes[0].set_ylabel("empty slots (% of all set aside)")
    axes[1].set_ylabel("row of the block table (entries)")
    axes[0].set_title("Large blocks: slots stay empty")
    axes[1].set_title("Small blocks: rows get long")
    return fig
