"""One block of the cache as it fills: by how many records it is described."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import BLUE, SKY, figure, styled


@styled
def draw_block_lives(lives: Mapping[str, Sequence[int]]) -> Figure:
    """Draw how many records describe one block of the cache as it fills, a row per kind of record, by name.

    Each record is a box, as long as it described the block. lives: for each kind, how many records had been
    made after each appended token.
    """
    fig, axes = figure(0.95 + 0.62 * len(lives))
    for row, created in enumerate(lives.values()):
        starts = [t for t in range(len(created)) if t == 0 or created[t] > created[t - 1]]
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(created)], strict=True)):
            shade = (BLUE, SKY)[number % 2]
            axes.add_patch(Rectangle((start, row - 0.3), end - start, 0.6, facecolor=shade, alpha=0.7, lw=0))
        text = f"{created[-1]} created" if created[-1] > 1 else "1 created,\nchanged in place"
        axes.text(1.02, row, text, va="center", transform=axes.get_yaxis_transform(), weight="bold")
    num_tokens = max(len(created) for created in lives.values())
    axes.set_xlim(0, num_tokens)
    axes.set_xticks(range(0, num_tokens + 1, max(1, num_tokens // 8)))
    axes.set_yticks(range(len(lives)), list(lives))
    axes.set_ylim(len(lives) - 0.5, -0.5)
    axes.set_xlabel("tokens appended to the block")
    axes.set_title("One block's life: each box is the record that describes it for so long")
    return fig
