"""Programs of decode attention, each as high as what it reads: as many per row, and equal shares."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.show.style import BLUE, INK, ORANGE, figure, styled

BAR = 0.8


@styled
def draw_share_sizes(programs: Mapping[str, Sequence[tuple[int, int]]], long_row: int) -> Figure:
    """Draw the programs of one head by name, a bar for each: as high as the pieces that it reads.

    programs: row and pieces of each. long_row: the row that stands out. Raises ValueError if there is none.
    """
    fig, panels = figure(1.2 + 1.7 * len(programs), len(programs), sharex=True, sharey=True, squeeze=False)
    for axes, (name, each) in zip(panels[:, 0], programs.items(), strict=True):
        colours = [ORANGE if row == long_row else BLUE for row, _ in each]
        axes.bar(range(len(each)), [pieces for _, pieces in each], BAR, color=colours)
        longest = max(pieces for _, pieces in each)
        axes.axhline(longest, color=INK, lw=1, ls="--")
        axes.set_title(f"{name}: {len(each)} programs per head, the longest reads {longest} pieces")
        axes.set_ylabel("pieces")
        axes.grid(axis="y")
    panels[-1, 0].set_xlabel("program")
    handles = [
        Patch(facecolor=ORANGE, label=f"row {long_row}, the long one"),
        Patch(facecolor=BLUE, label="all other rows"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=2)
    return fig
