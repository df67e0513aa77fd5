"""How far the reader has come: which gates were passed, and how far off predictions were."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.style import BLUE, GREEN, GREY, GREY_INK, ORANGE, PALE, figure, styled

NEAR = 2.0  # a guess within this factor is near
MOST = 100.0  # and one beyond this is drawn there


@dataclass(frozen=True)
class ProgressRow:
    """A lesson in the figure. passed: whether its gate was passed; None in a lesson without one. factors: by
    which factor each scored guess was off, 1 for a hit."""

    title: str
    passed: bool | None = None
    factors: tuple[float, ...] = ()


@styled
def draw_progress(rows: Sequence[ProgressRow]) -> Figure:
    """A line per lesson: a mark for its gate, and a dot per prediction, the farther right the farther off."""
    fig, (gates, guesses) = figure(
        1.2 + 0.3 * len(rows), 1, ncols=2, sharey=True, gridspec_kw={"width_ratios": [1, 5]}
    )
    _draw_gates(gates, rows)
    _draw_guesses(guesses, rows)
    gates.set_yticks(range(len(rows)), [row.title for row in rows])
    gates.set_ylim(len(rows) - 0.5, -0.5)
    gates.tick_params(axis="y", length=0)
    return fig


def _draw_gates(axes: Axes, rows: Sequence[ProgressRow]) -> None:
    for place, row in enumerate(rows):
        if row.passed is not None:
            face = GREEN if row.passed else "none"
            axes.plot(0, place, "s", markersize=9, markeredgecolor=GREEN, markerfacecolor=face)
    axes.set_xlim(-1, 1)
    axes.set_xticks([])
    with_gate = [row.passed for row in rows if row.passed is not None]
    axes.set_title("Gates")
    axes.set_xlabel(f"{sum(with_gate)} of {len(with_gate)} passed")


def _draw_guesses(axes: Axes, rows: Sequence[ProgressRow]) -> None:
    axes.axvspan(1 / 1.15, NEAR, color=PALE, linewidth=0)
    scored = [(min(factor, MOST), place) for place, row in enumerate(rows) for factor in row.factors]
    for factor, place in scored:
        axes.plot(factor, place, "o", color=BLUE if factor <= NEAR else ORANGE, markersize=6, alpha=0.8)
    axes.set_xscale("log")
    axes.set_xlim(1 / 1.15, MOST * 1.15)
    axes.set_xticks([1, 2, 5, 10, 100], ["hit", "×2", "×5", "×10", "×100 or more"])
    axes.minorticks_off()
    axes.grid(axis="y")
    near = sum(factor <= NEAR for factor, _ in scored)
    axes.set_title("Predictions: how far off")
    axes.set_xlabel(f"the factor between guess and measurement; {near} of {len(scored)} within ×2")
    if not scored:
        axes.text(0.5, 0.5, "no prediction scored yet", ha="center", color=GREY_INK, transform=axes.transAxes)
        axes.grid(color=GREY, alpha=0.2)
