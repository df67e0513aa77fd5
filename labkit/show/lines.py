"""Figures of lines: what is measured, against sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from labkit.results import HostTime, slope_us
from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SERIES, colour
from labkit.show.style import figure, is_wide, styled

if TYPE_CHECKING:  # what is drawn
    from labkit.learn.lesson_00.pieces import Waste

MARKERS = "os^D"  # the next one each time the colours begin again
LABEL_HEIGHT = 0.17  # inches that a label's line needs


@styled
def draw_host_time(series: Mapping[str, Sequence[HostTime]]) -> Figure:
    """Draw the median host time of a decode step against the batch size B: a line per rung, by name, labelled
    with the microseconds that one more request adds.

    series: for each rung, times at one batch size or more, in any order.
    """
    fig, axes = figure(max(3.6, 1.2 + 1.2 * LABEL_HEIGHT * len(series)))
    everything = [time.step_us for times in series.values() for time in times]
    unit, scale = ("milliseconds", 1e-3) if max(everything) >= 1e3 else ("microseconds", 1.0)
    ends = []
    for i, (name, times) in enumerate(series.items()):
        ordered = sorted(times, key=lambda time: time.batch_size)
        sizes, heights = [t.batch_size for t in ordered], [scale * t.step_us for t in ordered]
        marker = MARKERS[i // len(SERIES) % len(MARKERS)]
        axes.plot(sizes, heights, color=colour(i), marker=marker, label=name)
        slope = slope_us(ordered)
        added = "" if slope is None else f": {slope:{',.1f' if slope >= 0.1 else '.2f'}} µs a request"
        ends.append((name + added, (sizes[-1], heights[-1]), colour(i)))
    axes.set_xscale("log", base=2)
    batch_sizes = sorted({t.batch_size for times in series.values() for t in times})
    axes.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
    if is_wide(everything):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axes.set_ylim(bottom=0)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid()
    axes.set(xlabel="B: requests decoded together", ylabel=f"host time of a step ({unit})")
    axes.set_title("What a step costs the host, and what each further request adds")
    _write_at_line_ends(axes, ends)
    return fig


def _write_at_line_ends(axes: Axes, ends: Sequence[tuple[str, tuple[float, float], str]]) -> None:
    """Write each line's label to the right of its end; where ends are close, the labels are moved apart and
    joined to them."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [to_axes.transform(end)[1] for _, end, _ in ends]
    gap = LABEL_HEIGHT / (axes.figure.get_figheight() - 1.0)
    for (label, end, shade), height in zip(ends, spread(heights, gap), strict=True):
        axes.annotate(
            label,
            end,
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            arrowprops={"arrowstyle": "-", "color": shade, "lw": 0.8, "relpos": (0, 0.5)},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights between 0 and 1, in the same order, moved apart as little as it takes to be at least `gap` from
    each other."""
    groups: list[list[float]] = []  # labels that touch: where each would have the lowest of all labels
    rising = sorted(range(len(heights)), key=heights.__getitem__)
    for rank, i in enumerate(rising):
        groups.append([heights[i] - rank * gap])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    ceiling = 1 - gap * (len(heights) - 1)
    middles = [min(float(np.mean(group)), ceiling) for group in groups for _ in group]
    placed = dict(zip(rising, (m + rank * gap for rank, m in enumerate(middles)), strict=True))
    return [placed[i] for i in range(len(heights))]


@styled
def draw_block_sizes(sizes: Sequence[Waste], chosen: int) -> Figure:
    """Draw the share of empty slots and the length of a row of the block table over the size of a
    block, and mark one of the sizes, `chosen`."""
    (mark,) = (size for size in sizes if size.block_size == chosen)
    xs = [size.block_size for size in sizes]
    fig, axes = figure(2.9, ncols=2, sharex=True)
    panels = (
        ([100 * size.share for size in sizes], 100 * mark.share, BLUE, "{:.0f} % empty"),
        ([size.row_entries for size in sizes], mark.row_entries, ORANGE, "{} entries"),
    )
    for panel, (ys, at, shade, words) in zip(axes, panels, strict=True):
        panel.plot(xs, ys, "o-", color=shade, lw=1.5, markersize=4)
        panel.plot([chosen], [at], "o", color=shade, markersize=10, markeredgecolor=INK)
        panel.annotate(
            f"blocks of {chosen}:\n" + words.format(at),
            (chosen, at),
            xytext=(0.5, 0.72),
            textcoords="axes fraction",
            ha="center",
            arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
        )
        panel.set_xscale("log", base=2)
        panel.set_xticks(xs, [f"{x:,}" for x in xs], fontsize=8)
        panel.set_xlabel("block size (tokens)")
        panel.set_ylim(bottom=0)
    axes[0].set(ylim=(0, 100), ylabel="empty slots (% of all set aside)")
    axes[1].set_ylabel("row of the block table (entries)")
    axes[0].set_title("Large blocks: slots stay empty")
    axes[1].set_title("Small blocks: rows get long")
    return fig


@styled
def draw_buckets(policies: Mapping[str, Sequence[int]], max_batch_size: int) -> Figure:
    """Draw what padding batches to buckets costs: above, the rows of a step against the batch size, below,
    the share of them that is padding, in per cent.

    The first policy is a full line with its padding shaded, the others are thin lines. policies: by name, the
    buckets in rising order; the last bucket of each is at least `max_batch_size`.
    """
    fig, (rows, share) = figure(5.2, rows=2, sharex=True, height_ratios=(3, 2))
    sizes = range(1, max_batch_size + 1)
    for place, (name, buckets) in enumerate(policies.items()):
        padded = [next(bucket for bucket in buckets if bucket >= size) for size in sizes]
        lost = [100 * (1 - size / bucket) for size, bucket in zip(sizes, padded, strict=True)]
        line = {"color": BLUE, "lw": 2} if place == 0 else {"color": GREY, "lw": 1.2, "ls": "--"}
        rows.step(sizes, padded, where="mid", label=f"{name}: {2 * len(buckets)} graphs", **line)
        share.step(sizes, lost, where="mid", **line)
        if place == 0:
            rows.fill_between(
                sizes, sizes, padded, step="mid", color=ORANGE, alpha=0.45, lw=0, label="padding rows"
            )
            share.fill_between(sizes, 0, lost, step="mid", color=ORANGE, alpha=0.45, lw=0)
    rows.plot(sizes, sizes, color=INK, lw=1, label="requests")
    rows.legend(loc="upper left")
    rows.set_ylabel("rows of the step")
    rows.set_ylim(bottom=0)
    rows.set_title("A batch takes the next larger graph; the rows between are padding")
    share.set(ylabel="padding (%)", ylim=(0, 50), xlabel="B: requests decoded together")
    first = next(iter(policies.values()))
    ticks: list[int] = []  # whose numbers have room beside each other, from the largest down
    for size in reversed([size for size in first if size == 1 or size >= 8]):
        if not ticks or ticks[-1] - size >= max_batch_size / 28:
            ticks.append(size)
    share.set_xticks(ticks[::-1])
    share.set_xlim(0.5, max_batch_size + 0.5)
    for axes in (rows, share):
        axes.grid(axis="y")
    return fig


LINE_HEIGHT = 0.2  # inches that a line of the legend needs


@styled
def draw_machines(lines: Mapping[str, Mapping[str, float]], what: str, title: str = "") -> Figure:
    """Draw a line per record over the rungs, on a logarithmic axis; records of one machine share a colour,
    and the last record is drawn thick, with its whole name in the legend.

    lines: for each record, by its machine, a colon and what it measured, a number above 0 for each of its
    rungs ("03"). what: the numbers are. Raises ValueError if there is no record.
    """
    if not lines:
        raise ValueError("there is no record to draw")
    machines = list(dict.fromkeys(map(machine_of, lines)))
    fig, axes = figure(3.4 + LINE_HEIGHT * (len(machines) + 1))
    rungs = sorted({rung for line in lines.values() for rung in line})
    axes.set_xlim(-0.3, len(rungs) - 0.7)
    axes.set_xticks(range(len(rungs)), rungs)
    *_, newest = lines
    looks = {
        machine: {"color": colour(i), "marker": MARKERS[i // len(SERIES) % len(MARKERS)], "markersize": 5}
        for i, machine in enumerate(machines)
    }
    for name, line in lines.items():
        places, look = [rungs.index(rung) for rung in line], looks[machine_of(name)]
        axes.plot(places, list(line.values()), lw=3.0 if name == newest else 1.0, **look)
    for machine, look in looks.items():
        axes.plot([], [], lw=1.0, label=machine, **look)
    axes.plot([], [], lw=3.0, label=f"the newest: {newest}", **looks[machine_of(newest)])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid()
    axes.set(xlabel="rung", ylabel=what, title=title)
    fig.legend(loc="outside lower left")
    return fig


def machine_of(name: str) -> str:
    return name.partition(":")[0]


# A line that lies on another one is narrower and has another pattern, so that both are seen.
LOOKS = (
    {"color": GREY, "lw": 5, "alpha": 0.6},
    {"color": ORANGE, "lw": 2.5, "ls": "--"},
    {"color": BLUE, "lw": 1.5, "ls": "-"},
    {"color": GREEN, "lw": 1.5, "ls": "-."},
    {"color": PURPLE, "lw": 1.5, "ls": ":"},
)
BARS = ({"color": GREY}, {"color": ORANGE, "hatch": "//", "edgecolor": "white"}, {"color": BLUE})


@styled
def draw_curves(
    curves: Mapping[str, Mapping[float, float]],
    across: str,
    up: str,
    title: str,
    marked: bool = True,
    log: str = "",
) -> Figure:
    """Draw values by name, a line each.

    across, up: what the axes are, with units. marked: with a dot at each value. log: "x", "y" or "xy", the
    axes that are logarithmic; the others begin at 0.
    """
    fig, axes = figure(3.2)
    for (name, values), look in zip(curves.items(), LOOKS, strict=False):
        axes.plot(list(values), list(values.values()), label=name, marker="o" if marked else "", **look)
    for axis in "xy":
        if axis in log:
            axes.set(**{f"{axis}scale": "log"})
        else:
            axes.set(**{f"{axis}lim": (0, None)})
        if axis not in log or axis == "x":
            getattr(axes, f"{axis}axis").set_major_formatter("{x:,g}")
    axes.set(xlabel=across, ylabel=up, title=title)
    axes.grid(axis="both" if log else "y")
    fig.legend(loc="outside lower center", ncols=1 if max(map(len, curves)) > 30 else len(curves))
    return fig


@styled
def draw_turns(computed: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Draw a conversation, a group of bars per turn: the tokens of its prompt that each engine computes, by
    name."""
    fig, axes = figure(3.2)
    width = 0.84 / len(computed)
    for number, ((name, counts), look) in enumerate(zip(computed.items(), BARS, strict=False)):
        shift = (number - (len(computed) - 1) / 2) * width
        places = [turn + shift for turn in range(1, len(counts) + 1)]
        axes.bar(places, counts, width, label=name, **look)
    num_turns = max(map(len, computed.values()))
    axes.set_xticks(range(1, num_turns + 1))
    axes.set(xlabel="turn of the conversation", ylabel="prompt tokens computed")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y")
    axes.set_title(title)
    fig.legend(loc="outside lower center", ncols=len(computed))
    return fig
