"""How near a workload comes to what the device can do (Williams, Waterman and Patterson, 2009)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from labkit.show.colours import BLUE, GREY, INK, PALE, colour
from labkit.show.style import figure, styled


@dataclass(frozen=True)
class RooflinePoint:
    """A measured piece of work: its floating-point operations, the bytes that it moves, and the seconds that
    it took."""

    label: str
    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, in FLOP per byte moved."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Floating-point operations per second."""
        return self.flops / self.seconds


@styled
def draw_roofline(points: Sequence[RooflinePoint], bandwidth: float, peak: float) -> Figure:
    """Draw measured work under the device's roofline: FLOP per second against FLOP per byte, on logarithmic
    axes.

    bandwidth: bytes per second; peak: FLOP per second; both measured.
    """
    fig, axes = figure(4.2)
    ridge = peak / bandwidth
    low = min([p.intensity for p in points] + [ridge]) / 4
    high = max([p.intensity for p in points] + [ridge]) * 8
    x = np.geomspace(low, high, 200)
    axes.loglog(x, np.minimum(x * bandwidth, peak) / 1e9, color=INK, lw=2)
    axes.text(low, peak / 1e9 * 1.08, f"slope: memory, {bandwidth / 1e9:,.0f} GB/s", va="bottom")
    axes.text(
        high, peak / 1e9 * 1.08, f"flat: arithmetic, {peak / 1e9:,.0f} GFLOP/s", ha="right", va="bottom"
    )
    axes.axvline(ridge, color=GREY, lw=0.8, ls=":")
    for i, point in enumerate(points):
        roof = min(point.intensity * bandwidth, peak)
        axes.plot([point.intensity] * 2, [point.rate / 1e9, roof / 1e9], color=colour(i), lw=1, ls="--")
        label = f"{point.label}: {100 * point.rate / roof:.0f} % of its roof"
        axes.plot(point.intensity, point.rate / 1e9, "o", color=colour(i), markersize=9, label=label)
    axes.grid(which="major")
    axes.set(xlabel="arithmetic intensity (FLOP a byte moved)", ylabel="GFLOP per second")
    axes.set_ylim(top=peak / 1e9 * 2.2)
    axes.set_title("Under the slope: bound by memory. Under the flat roof: bound by arithmetic")
    axes.legend(loc="lower right")
    return fig


@styled
def draw_limit(
    batch_sizes: Sequence[int], limit_seconds: Sequence[float], step_seconds: Sequence[float], device: str
) -> Figure:
    """Draw the measured decode throughput beside the most that the measured bandwidth allows, for each batch
    size.

    limit_seconds, step_seconds: for each batch size, the least time of a decode step and its measured time.
    """
    fig, axes = figure(0.9 + 0.65 * len(batch_sizes))
    rows, sizes = np.arange(len(batch_sizes)), np.array(batch_sizes)
    allowed, reached = sizes / limit_seconds, sizes / step_seconds
    axes.barh(rows - 0.2, allowed, height=0.36, color=PALE, edgecolor=INK, lw=0.8, label="the limit")
    axes.barh(rows + 0.2, reached, height=0.36, color=BLUE, label="measured")
    for row, rate, share in zip(rows, reached, reached / allowed, strict=True):
        axes.text(rate, row + 0.2, f"  {rate:,.0f} tokens/s: {100 * share:.1f} % of the limit", va="center")
    axes.set_yticks(rows, [f"B = {size}" for size in batch_sizes])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.invert_yaxis()
    axes.set_xlabel("decode tokens per second")
    axes.set_title(f"How far this engine is from what the memory allows: {device}")
    axes.legend(loc="upper right")
    return fig
