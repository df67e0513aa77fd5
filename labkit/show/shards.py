"""A layer that is cut among GPUs."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.show.colours import GREY_INK, INK, colour
from labkit.show.marks import box, key_below, write
from labkit.show.style import figure, styled

GAP = 1.1  # between two matrices, in heads
# By name: groups of outputs that are cut each, their size in E, whether by outputs, and what stands behind.
MATRICES = (
    ("qkv", 3, 1, True, "attention,\nhead by head"),
    ("attention_out", 1, 1, False, "Σ"),
    ("mlp_in", 1, 4, True, "GELU, value\nby value"),
    ("mlp_out", 1, 1, False, "Σ"),
)


@styled
def draw_shards(ranks: int = 2) -> Figure:
    """Draw the four matrices of a layer, and in colours which rank has what; between them, what happens to
    the values that they make."""
    fig, axes = figure(3.4)
    num_heads = 4
    left, height = 0.0, 4.0 * num_heads
    for name, groups, size, by_outputs, behind in MATRICES:
        inputs, outputs = (4 if name == "mlp_out" else 1) * num_heads, size * num_heads
        corner = left, height / 2 - groups * outputs / 2
        for group in range(groups):
            _draw_group(axes, (corner[0], corner[1] + group * outputs), inputs, outputs, ranks, by_outputs)
        write(axes, left + inputs / 2, -1.3, name, weight="bold", color=INK)
        cut = "by outputs" if by_outputs else "by inputs"
        write(axes, left + inputs / 2, -2.9, cut, fontsize=9, color=GREY_INK)
        left += inputs + GAP
        look = {"fontsize": 14, "weight": "bold"} if behind == "Σ" else {"fontsize": 8.5}
        write(axes, left + 1.4, height / 2, behind, color=INK, **look)
        left += 2.8 + GAP
    axes.set(xlim=(-0.5, left - GAP), ylim=(-3.6, height + 0.5))
    axes.set_axis_off()
    axes.set_title("A layer on two GPUs: by outputs, by inputs, a sum, and the same again")
    handles = [Patch(facecolor=colour(rank), alpha=0.6, label=f"rank {rank}") for rank in range(ranks)]
    key_below(fig, handles, ranks)
    return fig


def _draw_group(
    axes: Axes, corner: tuple[float, float], inputs: float, outputs: float, ranks: int, by_outputs: bool
) -> None:
    """A matrix [outputs, inputs], outputs downwards, in a part for each rank."""
    left, bottom = corner
    for rank in range(ranks):
        look = {"facecolor": colour(rank), "alpha": 0.6, "edgecolor": INK, "lw": 0.8}
        if by_outputs:
            part = outputs / ranks
            box(axes, (left, bottom + (ranks - 1 - rank) * part), inputs, part, **look)
        else:
            part = inputs / ranks
            box(axes, (left + rank * part, bottom), part, outputs, **look)
