"""What figures show, read back; and made-up measurements to draw."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text

from labkit.results import Comparison
from labkit.show.style import DescribedFigure, alt_text


@pytest.fixture(autouse=True)
def close_figures():
    """No figure stays open, and the package's own each say what they show; for a folder's conftest."""
    yield
    drawn = [plt.figure(number) for number in plt.get_fignums()]
    plt.close("all")
    assert all(alt_text(fig) for fig in drawn if isinstance(fig, DescribedFigure))


ROUND = (1.0, 1.01, 0.99, 1.0)  # runs about 1 s


def comparison(speedup, path=None):
    """Four runs of 8 s before; after it, runs that are `speedup` times as fast."""
    runs = [8 * run for run in ROUND]
    after = tuple(run / speedup for run in runs)
    return Comparison("old", "new", tuple(runs), after, {"generic": 9}, {"generic": 9}, path)


def all_texts(figure):
    """Every text that is seen: the title and the labels of ticks in view among them."""
    unseen = set()
    for axes in figure.axes:
        for i, axis in enumerate((axes.xaxis, axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_ticklabels()
            unseen |= {t for t in ticks if not axes.axison or not low <= t.get_position()[i] <= high}
    return [t for t in figure.findobj(Text) if t.get_text() and t.get_visible() and t not in unseen]


def lines(figure, marker):
    return [line for line in figure.axes[0].lines if line.get_marker() == marker]


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


WAYS = {
    "before": {"batch_idx": (0, 1, 2), "block_idx": (7, 3, 5), "pos": (20, 20, 20)},
    "after": {"block_idx": (7, 3, 5), "pos": 20},
}
