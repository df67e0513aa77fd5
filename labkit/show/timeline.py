"""A profiled decode step on the clock."""

from matplotlib.figure import Figure

from labkit.results.profiles import Span, StepProfile
from labkit.show.style import INK, PALE, colour, figure, styled

BOX = 0.7  # height of a lane's boxes


@styled
def draw_timeline(profile: StepProfile) -> Figure:
    """Draw one profiled step on the clock, a lane each: the named ranges, the operators that Python called,
    and, on a GPU, its kernels."""
    lanes = ["named ranges", "PyTorch operators"]
    if profile.kernels:
        lanes.append(f"GPU kernels\n(busy {100 * profile.gpu_busy:.0f} %)")
    fig, axes = figure(1.7 + 0.5 * len(lanes))
    names = list(dict.fromkeys(span.name for span in profile.ranges))
    axes.broken_barh([(0, profile.duration / 1e3)], (-BOX / 2, BOX), color=PALE)
    for i, name in enumerate(names):
        boxes = bars([span for span in profile.ranges if span.name == name])
        axes.broken_barh(boxes, (-BOX / 2, BOX), color=colour(i), label=name.removeprefix("labkit."))
    for lane, spans in ((1, profile.operators), (2, profile.kernels)):
        # Most boxes are thinner than a pixel: unsnapped, their density shows as shade.
        axes.broken_barh(bars(spans), (lane - BOX / 2, BOX), color=INK, lw=0, snap=False)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlabel("milliseconds since the step began (with the profiler on, which slows the step)")
    axes.set_title(f"One decode step of {profile.batch_size} requests")
    fig.legend(loc="outside lower center", ncols=2)
    return fig


def bars(spans: tuple[Span, ...] | list[Span]) -> list[tuple[float, float]]:
    """(start, duration) of each span in milliseconds, as `broken_barh` takes them."""
    return [(span.start / 1e3, span.duration / 1e3) for span in spans]
