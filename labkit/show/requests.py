"""The life of requests on the clock, from the moments that completions carry."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.show.style import BLUE, GREY, INK, ORANGE, figure, styled


class Timing(Protocol):
    """The moments of a request, in seconds on one clock: arrival, admission, and each of its tokens."""

    arrived: float
    admitted: float
    tokens: Sequence[float]


class Timed(Protocol):
    """A completion as `draw_requests` needs it: the id of the request and its moments."""

    request_id: int
    timing: Timing


@styled
def draw_requests(completions: Sequence[Timed]) -> Figure:
    """Draw the life of requests, a row per request: queue wait, prefill, decode, and a tick per token. The
    axis is in milliseconds from the first arrival."""
    fig, axes = figure(0.9 + 0.26 * len(completions))
    origin = min(c.timing.arrived for c in completions)
    for row, completion in enumerate(completions):
        timing = completion.timing
        arrived, admitted = (1e3 * (t - origin) for t in (timing.arrived, timing.admitted))
        tokens = [1e3 * (t - origin) for t in timing.tokens]
        axes.barh(row, admitted - arrived, left=arrived, color=GREY, height=0.5)
        axes.barh(row, tokens[0] - admitted, left=admitted, color=ORANGE, height=0.5)
        axes.barh(row, tokens[-1] - tokens[0], left=tokens[0], color=BLUE, height=0.5, alpha=0.35)
        axes.plot(tokens, [row] * len(tokens), "|", color=INK, markersize=7, markeredgewidth=0.7)
    axes.set_yticks(range(len(completions)), [f"request {c.request_id}" for c in completions], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds since the first request arrived")
    axes.set_title("TTFT ends at a row's first tick; ITL is the gap between two ticks")
    tick = Line2D([], [], marker="|", linestyle="none", color=INK, label="a token")
    keys = [Patch(color=GREY, label="queue wait"), Patch(color=ORANGE, label="prefill")]
    fig.legend(
        handles=[*keys, Patch(color=BLUE, alpha=0.35, label="decode"), tick],
        loc="outside lower center",
        ncols=4,
    )
    return fig
