"""The K/V write of one layer by itself: its time and what it moves, against the batch size."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from labkit.results import AppendTime
from labkit.show.positions import WRITE_COLOURS
from labkit.show.style import INK, figure, styled

MARKERS = {"indexed": "s", "generic": "^", "full_batch": "o", "identity_pos": "x"}


@styled
def draw_append_times(times: Sequence[AppendTime], bandwidth: float) -> Figure:
    """Draw what one layer's K/V write costs against the batch size B, a line per path of the write.

    Above, the microseconds of a write; below, the bytes that it moves per second, beside `bandwidth`, the
    bytes per second of a large copy on the same device. Both axes are logarithmic.
    """
    fig, (top, bottom) = figure(6.8, rows=2, sharex=True)
    for path in dict.fromkeys(time.path for time in times):
        line = sorted((time for time in times if time.path == path), key=lambda time: time.batch_size)
        sizes = [time.batch_size for time in line]
        look = {"color": WRITE_COLOURS[path], "marker": MARKERS[path], "markersize": 5, "label": path}
        top.plot(sizes, [time.device_us for time in line], **look)
        bottom.plot(sizes, [time.rate / 1e9 for time in line], **look)
    bottom.axhline(bandwidth / 1e9, color=INK, lw=1.5, ls="--")
    bottom.annotate(
        f"a large copy: {bandwidth / 1e9:,.0f} GB/s",
        (min(time.batch_size for time in times), bandwidth / 1e9),
        xytext=(0, -4),
        textcoords="offset points",
        va="top",
    )
    for axes in (top, bottom):
        _scale_axes(axes, sorted({time.batch_size for time in times}))
    top.set_ylabel("microseconds")
    bottom.set_ylabel("GB per second")
    bottom.set_xlabel("B: requests written together")
    top.set_title("One layer's write: where a line is flat, more requests cost nothing")
    best = max(times, key=lambda time: time.rate)
    where = f"{best.path}, B = {best.batch_size}"
    bottom.set_title(f"What it moves: at best {100 * best.rate / bandwidth:.0f} % of a copy's rate ({where})")
    fig.legend(*top.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig


def _scale_axes(axes: Axes, batch_sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid()
