"""One look for every figure, about 900 pixels wide, and what figures are made of: boxes, text, rows and their
names, and the key of the colours."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.colours import INK

WIDE = 20  # times the smallest value: a linear axis would show that one as nothing
WIDTH = 8.6  # inches
DPI = 105

RC = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "legend.fontsize": 9,
}

Draw = TypeVar("Draw", bound=Callable[..., Figure])
Look = str | Mapping[str, Any]  # a colour, or what a patch takes


def styled(draw: Draw) -> Draw:
    """Decorate a function that draws a figure: it draws in the package's style, and the reader's own settings
    of matplotlib stay as they are."""

    @wraps(draw)
    def in_style(*args, **kwargs) -> Figure:
        with plt.rc_context(RC):
            return draw(*args, **kwargs)

    return in_style


class DescribedFigure(Figure):
    """A figure whose picture, in a notebook, has its titles as alternative text."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict, dict]:
        """What IPython asks for: no further form of the figure, and the metadata of its picture."""
        return {}, {"image/png": {"alt": alt_text(self)}}


def alt_text(fig: Figure) -> str:
    """What a figure shows, for who does not see it: its label, or the titles of its panels, from the top."""
    if fig.get_label():
        return fig.get_label()
    titles = [axes.get_title(loc) for axes in fig.axes for loc in ("left", "center", "right")]
    return ". ".join(dict.fromkeys(" ".join(title.split()) for title in titles if title))


def figure(height: float, rows: int = 1, **subplot_options) -> tuple[Figure, Axes]:
    """A new figure of the package's width, `height` inches high, and the axes of its `rows` panels, one below
    the other."""
    look = {"FigureClass": DescribedFigure, "figsize": (WIDTH, height), "layout": "constrained"}
    return plt.subplots(rows, **look, **subplot_options)


def panels(height: float, count: int, **subplot_options) -> tuple[Figure, list[Axes]]:
    """A new figure as `figure` makes it, and its panels as a list, however many they are."""
    fig, axes = figure(height, count, squeeze=False, **subplot_options)
    return fig, list(axes[:, 0])


def is_wide(values: Iterable[float]) -> bool:
    """Whether values, all above 0, lie so far apart that their axis should be logarithmic."""
    values = list(values)
    return max(values) > WIDE * min(values)


def box(axes: Axes, corner: tuple[float, float], width: float, height: float, **look: object) -> None:
    """A rectangle from its lower left corner on."""
    axes.add_patch(Rectangle(corner, width, height, **look))


def write(axes: Axes, x: float, y: float, text: str, **look: object) -> None:
    """Text with its middle at a place."""
    axes.text(x, y, text, ha="center", va="center", **look)


def beside(axes: Axes, y: float, text: str, x: float = 1.02, **look: object) -> None:
    """Text to the right of the axes, at the height of a row."""
    axes.text(x, y, text, va="center", transform=axes.get_yaxis_transform(), **look)


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """A row for each name, from the top."""
    names = list(names)
    axes.set_yticks(range(len(names)), names)
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
