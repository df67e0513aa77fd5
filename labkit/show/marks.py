"""What figures are made of: boxes, text, rows and their names, and the key of the colours."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

Look = str | Mapping[str, Any]  # a colour, or what a patch takes


def box(axes: Axes, corner: tuple[float, float], width: float, height: float, **look: object) -> None:
    """A rectangle from its lower left corner on."""
    axes.add_patch(Rectangle(corner, width, height, **look))


def write(axes: Axes, x: float, y: float, text: str, **look: object) -> None:
    """Text with its middle at a place."""
    axes.text(x, y, text, ha="center", va="center", **look)


def beside(axes: Axes, y: float, text: str, x: float = 1.02, **look: object) -> None:
    """Text to the right of the axes, at the height of a row."""
    axes.text(x, y, text, va="center", transform=axes.get_yaxis_transform(), **look)


def name_rows(axes: Axes, names: Iterable[str], **look: object) -> None:
    """A row for each name, from the top."""
    names = list(names)
    axes.set_yticks(range(len(names)), names, **look)
    axes.set_ylim(len(names) - 0.5, -0.5)


def bare(axes: Axes) -> None:
    """Take away the axis of rows; their names stay."""
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def as_patch(look: Look) -> dict[str, Any]:
    """A look as a patch takes it."""
    return {"facecolor": look} if isinstance(look, str) else dict(look)


def key_below(fig: Figure, looks: Mapping[str, Look], ncols: int, *more: Artist) -> None:
    """What looks mean, by label, below the figure. more: other marks."""
    if looks or more:
        handles = [Patch(label=label, **as_patch(look)) for label, look in looks.items()]
        fig.legend(handles=[*handles, *more], loc="outside lower center", ncols=ncols)
