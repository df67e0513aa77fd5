"""A step's launches on the host and its kernels on the GPU, to scale: one by one, and as a graph."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.style import BLUE, ORANGE, figure, styled

HEIGHT = 0.62  # height of a lane's boxes
LANES = {"host": 1, "GPU": 0}


@styled
def draw_launches(kernels: int, eager_us: float, graph_us: float, gpu_us: float, shown: int = 30) -> Figure:
    """Draw the beginning of a decode step twice, to scale: its kernels launched one by one, and as one CUDA
    graph.

    kernels: how many the step has. eager_us, graph_us: microseconds that each of the two steps took as a
    whole; gpu_us: of them, the kernels' own. All launches are drawn as if they took the same time, and so are
    all kernels: only the sums are measured. shown: how many launches are drawn.
    """
    fig, (eager, graph) = figure(3.5, rows=2, sharex=True)
    launch, kernel = eager_us / kernels, gpu_us / kernels
    end = min(shown, kernels) * launch
    starts = launch * np.arange(min(shown, kernels))
    _draw_lane(eager, "host", starts, 0.85 * launch, ORANGE)
    _draw_lane(eager, "GPU", starts + 0.85 * launch, min(kernel, launch), BLUE)
    busy = min(1.0, gpu_us / eager_us)
    eager.set_title(
        f"Launched one by one: {kernels} kernels in {eager_us:,.0f} µs, GPU busy {100 * busy:.0f} %"
    )
    _draw_lane(graph, "host", np.array([0.0]), launch, ORANGE)
    starts = kernel * np.arange(kernels)
    _draw_lane(graph, "GPU", 0.85 * launch + starts[starts < end], 0.85 * kernel, BLUE)
    graph.set_title(f"One replay: the same {kernels} kernels in {graph_us:,.0f} µs")
    graph.set_xlim(0, end)
    graph.xaxis.set_major_formatter("{x:,.0f}")
    graph.set_xlabel(
        f"microseconds from the step's start (shown: the time of {min(shown, kernels)} launches)"
    )
    return fig


def _draw_lane(axes: Axes, lane: str, starts: np.ndarray, width: float, shade: str) -> None:
    spans = [(start, width) for start in starts.tolist()]
    axes.broken_barh(spans, (LANES[lane] - HEIGHT / 2, HEIGHT), facecolors=shade)
    axes.set_yticks(list(LANES.values()), list(LANES))
    axes.set_ylim(-0.6, 1.6)
