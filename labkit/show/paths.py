"""How the block of each decoded token was made ready, step by step."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.show.style import BLUE, GREEN, ORANGE, RED, figure, styled

# By the path's name: the colour and the words of the legend, the commonest at the bottom of a bar.
READY_COLOURS = {
    "in_place": (BLUE, "in place: room and one holder"),
    "boundary": (ORANGE, "boundary: a new block"),
    "copy_on_write": (RED, "copy-on-write: a copy first"),
    "first": (GREEN, "first block of a sequence"),
}


@styled
def draw_paths(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Figure:
    """Draw the path that each decoded token took, a panel per run, by its title, and a bar per step: its
    tokens, stacked by path.

    runs: as `record_paths` gives them. A step that only admitted requests has no bar.
    """
    fig, panels = figure(0.6 + 2.1 * len(runs), rows=len(runs), squeeze=False)
    seen = [
        path for path in READY_COLOURS if any(step.get(path) for steps in runs.values() for step in steps)
    ]
    for axes, (title, steps) in zip(panels[:, 0], runs.items(), strict=True):
        numbers = range(1, len(steps) + 1)
        below = [0] * len(steps)
        for path in seen:
            counts = [step.get(path, 0) for step in steps]
            axes.bar(numbers, counts, bottom=below, color=READY_COLOURS[path][0], width=0.8)
            below = [low + count for low, count in zip(below, counts, strict=True)]
        axes.set_title(title)
        axes.set_ylabel("tokens")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0.3, len(steps) + 0.7)
        axes.grid(axis="y")
    panels[-1, 0].set_xlabel("step")
    keys = [Patch(color=READY_COLOURS[path][0], label=READY_COLOURS[path][1]) for path in seen]
    fig.legend(handles=keys, loc="outside lower center", ncols=len(keys))
    return fig
