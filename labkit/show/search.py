"""Where top-k cuts a row of scores: found by sorting the row, and by a search that moves nothing."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.show.style import BLUE, GREY, INK, ORANGE, figure, styled


@styled
def draw_search(scores: Sequence[float], k: int, guesses: Sequence[float]) -> Figure:
    """Draw a row's scores twice: sorted, with the k-th marked, and in their places, with the guesses of a
    search as lines, which end behind the tokens in their order, and the cut that it has found.

    Kept are the k largest, and what ties with the last of them.
    """
    numbers = np.asarray(scores)
    order = np.argsort(-numbers, kind="stable")
    cut = numbers[order[k - 1]]
    fig, (sort, search) = figure(3.6, ncols=2, sharey=True)
    _draw_bars(sort, numbers[order], order, cut)
    sort.axvline(k - 0.5, color=INK, lw=1.5)
    sort.annotate(f"the {k}th is the cut", (k - 0.4, numbers.max()), va="top", fontsize=9)
    sort.set_title(f"A sort moves all {len(numbers)} tokens")
    sort.set_ylabel("score")
    _draw_bars(search, numbers, np.arange(len(numbers)), cut)
    first = len(numbers) + 1  # the guesses are behind the tokens, one after another
    places = range(first, first + len(guesses))
    search.hlines(guesses, -0.5, places, color=ORANGE, lw=1, ls="--")
    search.plot(places, guesses, "o-", color=ORANGE, markersize=7, markeredgecolor=INK)
    search.axhline(cut, color=INK, lw=1.5)
    search.axvline(first - 0.75, color=GREY, lw=0.8)
    names = [*range(len(numbers)), *range(1, len(guesses) + 1)]
    search.set_xticks([*range(len(numbers)), *places], [str(name) for name in names], fontsize=8)
    search.set_xlabel("token id, and the number of the guess")
    search.set_title(f"A search moves none: {len(guesses)} guesses")
    fig.legend(
        handles=[
            Patch(facecolor=BLUE, label="kept"),
            Patch(facecolor=GREY, hatch="//", edgecolor="white", label="dropped"),
            Patch(facecolor=ORANGE, label="a guess"),
            Patch(facecolor=INK, label="the cut"),
        ],
        loc="outside lower center",
        ncols=4,
    )
    return fig


def _draw_bars(axes: Axes, scores: np.ndarray, token_ids: np.ndarray, cut: float) -> None:
    for place, score in enumerate(scores):
        look = {"color": BLUE} if score >= cut else {"color": GREY, "hatch": "//", "edgecolor": "white"}
        axes.bar(place, score, width=0.75, **look)
    axes.set_xticks(range(len(scores)), [str(token_id) for token_id in token_ids], fontsize=8)
    axes.set_xlabel("token id")
