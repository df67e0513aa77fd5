"""The steps of engines, as wide as what they compute: who gets a token, who waits, whose prompt it is."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.style import BLUE, GREEN, INK, ORANGE, figure, styled


class JoinStep(NamedTuple):
    """A step: the rows that it computes, and in it by request: "token", "waits" or "prompt"."""

    rows: int
    states: Mapping[int, str]


STATES = {
    "token": (BLUE, "", "runs, and gets a token"),
    "waits": (ORANGE, "//", "runs, and gets none"),
    "prompt": (GREEN, "..", "its prompt is computed"),
}


@styled
def draw_joins(runs: Mapping[str, Sequence[JoinStep]], notes: Mapping[str, str] | None = None) -> Figure:
    """Draw each run's steps as columns, one behind the other, each as wide as the rows that it sends through
    the layers; a line per request.

    notes: text behind a run's name. Raises ValueError if there is no run.
    """
    requests = {name: sorted({r for step in steps for r in step.states}) for name, steps in runs.items()}
    heights = [max(1, len(ids)) for ids in requests.values()]
    fig, panels = figure(
        1.1 + 0.6 * len(runs) + 0.3 * sum(heights),
        len(runs),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    for axes, (name, steps) in zip(panels[:, 0], runs.items(), strict=True):
        _draw_run(axes, steps, requests[name])
        note = (notes or {}).get(name, "")
        axes.set_title(f"{name}{': ' if note else ''}{note}")
    panels[-1, 0].set_xlim(0, 1.01 * max(sum(step.rows for step in steps) for steps in runs.values()))
    panels[-1, 0].set_xlabel("rows through the layers, step by step (a line is the end of a step)")
    handles = [
        Patch(facecolor=face, hatch=hatch, edgecolor="white", label=label)
        for face, hatch, label in STATES.values()
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def _draw_run(axes: Axes, steps: Sequence[JoinStep], requests: Sequence[int]) -> None:
    start = 0
    for step in steps:
        for line, request in enumerate(requests):
            if request in step.states:
                face, hatch, _ = STATES[step.states[request]]
                corner = start, line - 0.35
                axes.add_patch(Rectangle(corner, step.rows, 0.7, fc=face, hatch=hatch, ec="white", lw=0.4))
        start += step.rows
        axes.axvline(start, color=INK, lw=0.5)
    axes.set_yticks(range(len(requests)), [f"request {request}" for request in requests])
    axes.set_ylim(len(requests) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
