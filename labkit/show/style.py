"""One look for every figure: about 900 pixels wide, colours that colour-blind readers can tell apart."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TypeVar

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
