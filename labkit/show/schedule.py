"""The host and the GPU on one clock: what each of them works on, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.style import BLUE, GREEN, INK, ORANGE, PALE, figure, styled


class Busy(NamedTuple):
    """A piece of work of one step, on the host or on the GPU: from `start` to `end`, in microseconds."""

    lane: str  # "host" or "GPU"
    work: str  # one of WORK
    step: int  # its number; in a chain of kernels the kernel's
    start: float
    end: float


# By the kind of work: its colours, in even and odd steps; and the words of the legend, for a decode step.
WORK = {"launch": (BLUE, BLUE), "accept": (ORANGE, ORANGE), "gpu": (GREEN, "#7FCEB9")}
WORDS = {
    "launch": "host: make room, launch",
    "accept": "host: read, end requests, hand out",
    "gpu": "GPU: the step itself",
}
LANES = ("host", "GPU")
BOX = 0.8
ROUNDING = 1e-6  # microseconds by which two boxes may overlap, and still follow one another


@styled
def draw_schedules(
    schedules: Mapping[str, Sequence[Busy]],
    notes: Mapping[str, str] | None = None,
    end: float | None = None,
    words: Mapping[str, str] = WORDS,
) -> Figure:
    """Draw when the host and the GPU work, two lanes per schedule, by name, all on one clock; each box has
    its step's number. Boxes of a lane that overlap in time stand one below the other.

    notes: a line of text under a schedule's name. end: where the clock ends, in microseconds. words: the
    legend's, by the kind of work; a decode step's by default.
    """
    fig, all_axes = figure(0.9 + 1.25 * len(schedules), len(schedules), sharex=True, squeeze=False)
    end = end or max(busy.end for schedule in schedules.values() for busy in schedule)
    for axes, (name, schedule) in zip(all_axes[:, 0], schedules.items(), strict=True):
        _draw_lanes(axes, schedule, end)
        axes.set_title(f"{name}{': ' if (notes or {}).get(name) else ''}{(notes or {}).get(name, '')}")
    all_axes[-1, 0].set_xlabel("microseconds")
    handles = [Patch(facecolor=WORK[work][0], label=text) for work, text in words.items()]
    handles.append(Patch(facecolor=PALE, label="waits"))
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig


def _draw_lanes(axes: Axes, schedule: Sequence[Busy], end: float) -> None:
    for row, lane in enumerate(LANES):
        axes.add_patch(Rectangle((0, row - BOX / 2), end, BOX, facecolor=PALE, lw=0))
        boxes = [busy for busy in schedule if busy.lane == lane and busy.start < end]
        levels = list(_levels(boxes))
        height = BOX / (max(levels, default=0) + 1)
        for busy, level in zip(boxes, levels, strict=True):
            _draw_box(axes, row - BOX / 2 + level * height, height, busy, end)
    axes.set_xlim(0, end)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_ylim(len(LANES) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _levels(boxes: Sequence[Busy]) -> Iterator[int]:
    """For each box, the first level on which the one before it has ended: 0 for all, unless they overlap."""
    ends: list[float] = []
    for busy in boxes:
        level = next((i for i, last in enumerate(ends) if last <= busy.start + ROUNDING), len(ends))
        ends[level : level + 1] = [busy.end]
        yield level


def _draw_box(axes: Axes, top: float, height: float, busy: Busy, end: float) -> None:
    width = min(busy.end, end) - busy.start
    shade = WORK[busy.work][busy.step % 2]
    box = Rectangle((busy.start, top), width, height, facecolor=shade, edgecolor="white", lw=0.8)
    axes.add_patch(box)
    if width > 0.018 * end:  # wide enough for a number
        colour = "white" if shade == BLUE else INK
        place = (busy.start + width / 2, top + height / 2)
        axes.text(*place, str(busy.step), ha="center", va="center", fontsize=9, color=colour)
