"""Figures of lines: what is measured, against sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PURPLE
from labkit.show.style import figure, styled

if TYPE_CHECKING:  # what is drawn
    from labkit.learn.lesson_00.pieces import Waste


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
        place, line = (0.5, 0.72), {"arrowstyle": "-", "color": INK, "lw": 0.8}
        text = f"blocks of {chosen}:\n" + words.format(at)
        panel.annotate(text, (chosen, at), place, "data", "axes fraction", line, ha="center")
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
            look = {"step": "mid", "color": ORANGE, "alpha": 0.45, "lw": 0}
            rows.fill_between(sizes, sizes, padded, label="padding rows", **look)
            share.fill_between(sizes, 0, lost, **look)
    rows.plot(sizes, sizes, color=INK, lw=1, label="requests")
    rows.legend(loc="upper left")
    rows.set_ylabel("rows of the step")
    rows.set_ylim(bottom=0)
    rows.set_title("A batch takes the next larger graph; the rows between are padding")
    share.set(ylabel="padding (%)", ylim=(0, 50), xlabel="B: requests decoded together")
    first = next(iter(policies.values()))
    share.set_xticks([size for size in first if size == 1 or 8 * size >= max_batch_size])
    share.set_xlim(0.5, max_batch_size + 0.5)
    for axes in (rows, share):
        axes.grid(axis="y")
    return fig


# A line that lies on another one is narrower and has another pattern, so that both are seen.
LOOKS = (
    {"color": GREY, "lw": 5, "alpha": 0.6},
    {"color": ORANGE, "lw": 2.5, "ls": "--"},
    {"color": BLUE, "lw": 1.5, "ls": "-"},
    {"color": GREEN, "lw": 1.5, "ls": "-."},
    {"color": PURPLE, "lw": 1.5, "ls": ":"},
)


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
