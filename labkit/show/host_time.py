"""Host time of a decode step against the batch size."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from labkit.results import HostTime, slope_us
from labkit.show.style import SERIES, colour, figure, is_wide, styled

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
        ends.append((_label(name, ordered), (sizes[-1], heights[-1]), colour(i)))
    _scale_axes(axes, sorted({t.batch_size for times in series.values() for t in times}), everything)
    axes.set_xlabel("B: requests decoded together")
    axes.set_ylabel(f"host time of a step ({unit})")
    axes.set_title("What a step costs the host, and what each further request adds")
    _write_at_line_ends(axes, ends)
    return fig


def _label(name: str, times: Sequence[HostTime]) -> str:
    slope = slope_us(times)
    if slope is None:
        return name
    return f"{name}: {slope:,.1f} µs a request" if slope >= 0.1 else f"{name}: {slope:.2f} µs a request"


def _scale_axes(axes: Axes, batch_sizes: Sequence[int], heights: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
    if is_wide(heights):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axes.set_ylim(bottom=0)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid()


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
