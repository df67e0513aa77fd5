"""The kernels of a layer and of a step: the operations that each replaces, and where the time of a recorded
step goes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.results import TracedStep
from labkit.results.kernels import group_us
from labkit.show.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, figure, styled

# By the kind of a kernel; and, in order, those of the groups of `results.kernels`.
KERNEL_COLOURS = {"product": BLUE, "attention": ORANGE, "other": GREY}
GROUP_COLOURS = (BLUE, SKY, ORANGE, GREEN, PURPLE, GREY)
BOX = 0.62  # height of a kernel's box, or a step's bar


class KernelBox(NamedTuple):
    """A kernel of a layer: how many kernels of the row above it replaces (`spans`), and how many numbers it
    writes to memory."""

    name: str
    spans: int
    writes: int

    @property
    def kind(self) -> str:
        """ "product", "attention" or "other", by the kernel's name: a key of KERNEL_COLOURS."""
        is_product = "linear" in self.name
        return "product" if is_product else "attention" if "attention" in self.name else "other"


@styled
def draw_layer_kernels(rows: Mapping[str, Sequence[KernelBox]]) -> Figure:
    """Draw the kernels of one layer, a row of boxes for each way to compute it, by name, in order; under a
    box, how many numbers it writes to memory."""
    fig, axes = figure(0.75 + 0.95 * len(rows))
    for row, boxes in enumerate(rows.values()):
        left = 0
        for box in boxes:
            _draw_box(axes, left, row, box)
            left += box.spans
    width = max(sum(box.spans for box in boxes) for boxes in rows.values())
    axes.set_xlim(-0.03, width + 0.03)
    axes.set_ylim(len(rows) - 0.35, -0.5)
    names = [f"{name}\n{len(boxes)} kernels" for name, boxes in rows.items()]
    axes.set_yticks(range(len(rows)), names)
    axes.set_xticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title("One layer of a decode step; under each kernel the numbers that it writes to memory")
    return fig


def _draw_box(axes: Axes, left: float, row: int, box: KernelBox) -> None:
    shade = KERNEL_COLOURS[box.kind]
    place = (left + 0.04, row - BOX / 2)
    axes.add_patch(Rectangle(place, box.spans - 0.08, BOX, facecolor=shade, alpha=0.35, edgecolor=shade))
    name = box.name if box.spans > 1 else box.name.replace("_", "\n")
    middle = left + box.spans / 2
    axes.text(middle, row, name, ha="center", va="center", fontsize=9)
    axes.text(middle, row + BOX / 2 + 0.03, f"{box.writes:,}", ha="center", va="top", fontsize=8.5)


@styled
def draw_step_kernels(steps: Mapping[str, TracedStep], limits_us: Mapping[str, float]) -> Figure:
    """Draw the GPU time of recorded steps, a bar per step, by name: its kernels' times one after the other,
    by group, and a line at its limit.

    limits_us: the least microseconds that each step could take, by name.
    """
    fig, axes = figure(1.5 + 0.5 * len(steps))
    for row, (name, step) in enumerate(steps.items()):
        left = 0.0
        for (group, us), shade in zip(group_us(step).items(), GROUP_COLOURS, strict=True):
            axes.barh(row, us, BOX, left, color=shade, label=group if row == 0 else None)
            left += us
        axes.plot([limits_us[name]] * 2, [row - 0.42, row + 0.42], color=INK, lw=1.8)
        text = f"{step.num_kernels} kernels, {left:,.0f} µs"
        axes.text(1.02, row, text, va="center", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(steps)), list(steps))
    axes.set_ylim(len(steps) - 0.45, -0.55)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="x")
    axes.set_xlabel("microseconds in which the GPU is busy (line: the limit of the step)")
    axes.set_title("What the GPU does in a decode step")
    fig.legend(loc="outside lower center", ncols=3)
    return fig


@styled
def draw_errors(
    panels: Mapping[str, Mapping[str, Sequence[float]]], x: Sequence[float], seen: float
) -> Figure:
    """Draw relative errors against the mean of a row in its standard deviations, a panel per table, by title,
    and a line per formula, by name.

    x: the means. seen: the largest mean that was met in a trained model, as a line across all panels.
    """
    fig, all_axes = figure(2.9 * len(panels), rows=len(panels), sharex=True)
    for axes, (title, lines) in zip(np.atleast_1d(all_axes), panels.items(), strict=True):
        looks = zip(lines.items(), (PURPLE, ORANGE, BLUE), ("^", "s", "o"), strict=False)
        for (name, errors), shade, marker in looks:
            axes.loglog(x, np.maximum(errors, 1e-8), color=shade, marker=marker, markersize=5, label=name)
        axes.axvline(seen, color=INK, lw=1, ls=":")
        axes.set_title(title)
        axes.set_ylabel("relative error")
        axes.grid()
        axes.minorticks_off()
        axes.legend(loc="upper left")
    axes.annotate(
        "the trained model's\nlargest",
        (seen, 0.3),
        xycoords=axes.get_xaxis_transform(),
        xytext=(4, 0),
        textcoords="offset points",
    )
    axes.set_xlabel("mean of a row, in its standard deviations")
    return fig
