"""How far the reader has come: which build steps are right, and how far off predictions were."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.colours import BLUE, GREEN, GREY, GREY_INK, ORANGE, PALE
from labkit.show.marks import name_rows
from labkit.show.style import figure, styled

NEAR = 2.0  # a guess within this factor is near
MOST = 100.0  # and one beyond this is drawn there


@dataclass(frozen=True)
class ProgressRow:
    """A lesson in the figure. share: of its build steps that are right, 1 where its gate is passed; None in a
    lesson without one. factors: by which factor each scored guess was off, 1 for a hit."""

    title: str
    share: float | None = None
    factors: tuple[float, ...] = ()


@styled
def draw_progress(rows: Sequence[ProgressRow]) -> Figure:
    """A line per lesson: a bar for its steps, and a dot per prediction, the farther right the farther off."""
    fig, (steps, guesses) = figure(
        1.2 + 0.3 * len(rows), 1, ncols=2, sharey=True, gridspec_kw={"width_ratios": [1, 5]}
    )
    _draw_steps(steps, rows)
    _draw_guesses(guesses, rows)
    name_rows(steps, [row.title for row in rows])
    steps.tick_params(axis="y", length=0)
    return fig


def _draw_steps(axes: Axes, rows: Sequence[ProgressRow]) -> None:
    shares = {place: row.share for place, row in enumerate(rows) if row.share is not None}
    axes.barh([*shares], [*shares.values()], 0.5, color=GREEN)
    axes.barh([*shares], 1, 0.5, color="none", edgecolor=GREEN)
    axes.set_xlim(-0.5, 1.5)
    axes.set_xticks([])
    axes.set(title="Steps", xlabel=f"{list(shares.values()).count(1)} of {len(shares)} passed")


def _draw_guesses(axes: Axes, rows: Sequence[ProgressRow]) -> None:
    axes.axvspan(1 / 1.15, NEAR, color=PALE, linewidth=0)
    scored = [(min(factor, MOST), place) for place, row in enumerate(rows) for factor in row.factors]
    for factor, place in scored:
        axes.plot(factor, place, "o", color=BLUE if factor <= NEAR else ORANGE, markersize=6, alpha=0.8)
    axes.set(xscale="log", xlim=(1 / 1.15, MOST * 1.15))
    axes.set_xticks([1, 2, 5, 10, 100], ["hit", "×2", "×5", "×10", "×100 or more"])
    axes.minorticks_off()
    axes.grid(axis="y")
    near = sum(factor <= NEAR for factor, _ in scored)
    axes.set_title("Predictions: how far off")
    axes.set_xlabel(f"the factor between guess and measurement; {near} of {len(scored)} within ×2")
    if not scored:
        axes.text(0.5, 0.5, "no prediction scored yet", ha="center", color=GREY_INK, transform=axes.transAxes)
        axes.grid(color=GREY, alpha=0.2)
