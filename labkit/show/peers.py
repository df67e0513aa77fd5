"""Engines side by side, and where the time of a step goes, beside the least that it could take."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from labkit.results.peers import OURS
from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY
from labkit.show.ladder import LIMIT_NAME
from labkit.show.marks import name_rows
from labkit.show.style import figure, is_wide, styled

PARTS = (BLUE, ORANGE, GREEN, PURPLE, SKY)


@styled
def draw_peers(
    rates: Mapping[str, Sequence[float]],
    limit: float | None = None,
    notes: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """Draw the tokens per second of engines, a row per engine, by name: each run a dot, the median a line.

    limit: the most tokens per second that the hardware allows. notes: text at the right of an engine's row,
    by name.
    """
    notes = notes or {}
    names = sorted(rates, key=lambda name: float(np.median(rates[name])))
    everything = [rate for runs in rates.values() for rate in runs] + [limit] * bool(limit)
    fig, axes = figure(1.2 + 0.38 * (len(names) + bool(limit)))
    on_log_axis = is_wide(everything)
    axes.set_xscale("log" if on_log_axis else "linear")
    start = min(everything) / 1.3 if on_log_axis else 0.0
    for row, name in enumerate(names):
        colour = BLUE if name.startswith(OURS) else ORANGE
        middle = float(np.median(rates[name]))
        axes.plot([start, middle], [row, row], color=PALE, lw=12, solid_capstyle="butt", zorder=1)
        axes.plot([min(rates[name]), max(rates[name])], [row, row], color=colour, lw=6, alpha=0.45)
        axes.plot([middle] * 2, [row - 0.3, row + 0.3], color=colour, lw=2.5)
        axes.plot(rates[name], [row] * len(rates[name]), "o", color=INK, markersize=3, alpha=0.7)
        _write_columns(axes, row, f"{middle:,.0f}", notes.get(name, ""))
    labels = [textwrap.fill(name, 28) for name in names]
    if limit:
        axes.axvline(limit, color=INK, lw=1.5, ls="--")
        _write_columns(axes, len(names), f"{limit:,.0f}", "")
        labels.append(LIMIT_NAME)
    name_rows(axes, labels)
    axes.set_xlim(start, max(everything) * (1.25 if on_log_axis else 1.05))
    if on_log_axis:
        between = (1, 3) if max(everything) < 100 * start else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=between))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"tokens per second, each dot a run{' (logarithmic axis)' if on_log_axis else ''}")
    axes.set_title(title or "The same requests, weights and number of tokens")
    return fig


def _write_columns(axes, row: int, rate: str, note: str) -> None:
    """Write the rate and the note in columns to the right of a row."""
    for text, points, side in ((rate, 55, "right"), (note, 70, "left")):
        axes.annotate(
            text,
            (1, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(points, 0),
            textcoords="offset points",
            ha=side,
            va="center",
        )


@styled
def draw_step_parts(steps: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> Figure:
    """Draw what decode steps are made of, two bars per step, by name ("B = 64"): what its parts take, and the
    least that they could take.

    steps: (parts, floors) for each, microseconds by the part's name; a part without a floor could take no
    time at all.
    """
    names = list(dict.fromkeys(part for parts, _ in steps.values() for part in parts))
    colours = dict(zip(names, [*PARTS, GREY, INK], strict=False))
    fig, axes = figure(1.6 + 0.95 * len(steps))
    ticks, seen = [], set()
    for i, (name, both) in enumerate(steps.items()):
        for j, (what, values) in enumerate(zip(("measured", "at the limit"), both, strict=True)):
            row, left = 2.4 * i + j, 0.0
            ticks.append((row, f"{name}, {what}"))
            for part, us in values.items():
                label = part if part not in seen else None
                seen.add(part)
                axes.barh(row, us, left=left, height=0.85, color=colours[part], alpha=0.8, label=label)
                left += us
            share = "" if j == 0 else f", {100 * left / sum(both[0].values()):.0f} % of it"
            axes.text(left, row, f"  {left:,.0f} µs{share}", va="center")
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel("microseconds of a decode step")
    axes.set_title("Where a step's time goes, and what of it the bytes explain")
    fig.legend(loc="outside lower center", ncols=len(names))
    return fig
