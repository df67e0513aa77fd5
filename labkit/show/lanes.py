"""Kernels on one clock, a row per stream: when each waits, and when it moves bytes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.style import BLUE, INK, ORANGE, PALE, figure, styled


class Span(NamedTuple):
    """A stretch of a kernel's time, from `start` to `end` in microseconds: it waits, or it moves bytes."""

    stream: str
    kernel: str
    state: str  # one of STATES
    start: float
    end: float


STATES = {"waits": ORANGE, "moves bytes": BLUE}
SHORT = {"norm_linear": "norm+linear", "linear_residual": "linear+add"}
BOX = 0.5
NARROW = 0.09  # of the clock: a kernel's name needs more


@styled
def draw_lanes(
    lanes: Mapping[str, Sequence[Span]],
    notes: Mapping[str, str] | None = None,
    end: float | None = None,
) -> Figure:
    """Draw spans by name, all on one clock: a row per stream in which a kernel ran, a kernel's name over its
    boxes.

    notes: text behind a name. end: where the clock ends, in microseconds. Raises ValueError if there is no
    span.
    """
    end = end or max(span.end for spans in lanes.values() for span in spans)
    rows = {name: list(dict.fromkeys(span.stream for span in spans)) for name, spans in lanes.items()}
    heights = [len(streams) for streams in rows.values()]
    fig, all_axes = figure(
        0.9 + 0.5 * len(lanes) + 0.62 * sum(heights),
        len(lanes),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    for axes, (name, spans) in zip(all_axes[:, 0], lanes.items(), strict=True):
        _draw_streams(axes, sorted(rows[name]), spans, end)
        note = (notes or {}).get(name, "")
        axes.set_title(f"{name}{': ' if note else ''}{note}")
    all_axes[-1, 0].set_xlabel("microseconds")
    handles = [Patch(facecolor=colour, label=f"a kernel {state}") for state, colour in STATES.items()]
    handles.append(Patch(facecolor=PALE, label="no kernel"))
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def _draw_streams(axes: Axes, streams: Sequence[str], spans: Sequence[Span], end: float) -> None:
    for row in range(len(streams)):
        axes.add_patch(Rectangle((0, row - BOX / 2), end, BOX, facecolor=PALE, lw=0))
    spans = [span._replace(end=min(span.end, end)) for span in spans if span.start < end]
    for span in spans:
        corner = span.start, streams.index(span.stream) - BOX / 2
        axes.add_patch(
            Rectangle(
                corner, span.end - span.start, BOX, facecolor=STATES[span.state], edgecolor="white", lw=0.6
            )
        )
    for stream, kernel, start, stop in kernels_of(spans):
        if stop - start > NARROW * end:
            place = ((start + stop) / 2, streams.index(stream) - BOX / 2 - 0.04)
            text = SHORT.get(kernel, kernel)
            axes.text(*place, text, ha="center", va="bottom", fontsize=7.5, color=INK)
    axes.set_xlim(0, end)
    axes.set_yticks(range(len(streams)), streams)
    axes.set_ylim(len(streams) - 0.6, -0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def kernels_of(spans: Sequence[Span]) -> list[tuple[str, str, float, float]]:
    """Stream, name, start and end of each kernel: a wait and the bytes right behind it are one kernel's."""
    kernels: list[tuple[str, str, float, float]] = []
    last: dict[str, Span] = {}
    for span in sorted(spans, key=lambda span: span.start):
        before = last.get(span.stream)
        goes_on = before is not None and before.state == "waits" and span.state != "waits"
        if goes_on and before.kernel == span.kernel:
            kernels = [k for k in kernels if k[::2] != (span.stream, before.start)]
            kernels.append((span.stream, span.kernel, before.start, span.end))
        else:
            kernels.append((span.stream, span.kernel, span.start, span.end))
        last[span.stream] = span
    return kernels
