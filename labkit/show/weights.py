"""What a new token looks at: the weights of one head over the tokens of a text."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.blocks import cell_text
from labkit.show.style import BLUE, GREY, INK, ORANGE, PALE, figure, styled


@styled
def draw_weights(
    tokens: Sequence[str],
    blocks: Sequence[int],
    block_size: int,
    yours: Sequence[float],
    expected: Sequence[float],
    title: str,
) -> Figure:
    """Draw how much each token counts for one head: your weights as bars, the expected ones as outlines, and
    below them the blocks in which the tokens lie.

    tokens: of the text, the new one last, which is in no block yet. blocks: the physical blocks of the text,
    in order.
    """
    fig, axes = figure(3.1)
    places = range(len(tokens))
    colours = [BLUE] * (len(tokens) - 1) + [ORANGE]
    axes.bar(places, yours, color=colours, width=0.7, label="yours")
    axes.bar(places, expected, fill=False, edgecolor=INK, lw=1.2, width=0.82, label="expected")
    axes.set_xticks(places, [cell_text(token) for token in tokens])
    axes.set_xlim(-0.7, max(len(tokens), len(blocks) * block_size) - 0.3)
    top = max(*yours, *expected)
    axes.set_ylim(-0.2 * top, 1.12 * top)
    for place, block in enumerate(blocks):
        axes.add_patch(
            Rectangle(
                (place * block_size - 0.5, -0.17 * top),
                block_size,
                0.13 * top,
                facecolor=PALE,
                edgecolor=GREY,
            )
        )
        axes.text(
            place * block_size + block_size / 2 - 0.5,
            -0.105 * top,
            f"block {block}",
            ha="center",
            va="center",
            fontsize=8,
        )
    axes.set_xlabel("tokens of the text, and the new token (orange), whose key and value come with the call")
    axes.set_ylabel("weight (they add up to 1)")
    axes.tick_params(bottom=False)
    axes.set_title(title)
    axes.legend(loc="upper left")
    return fig
