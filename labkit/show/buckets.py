"""Batch sizes, the buckets that they are padded to, and captures in the middle of serving."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from labkit.show.style import BLUE, GREY, INK, ORANGE, RED, figure, styled

REASONS = {  # by why a step captures: the colour and the words of the legend
    "size": (ORANGE, "this batch size is new"),
    "table": (RED, "its graph was dropped: the table grew"),
}


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
            rows.fill_between(
                sizes, sizes, padded, step="mid", color=ORANGE, alpha=0.45, lw=0, label="padding rows"
            )
            share.fill_between(sizes, 0, lost, step="mid", color=ORANGE, alpha=0.45, lw=0)
    rows.plot(sizes, sizes, color=INK, lw=1, label="requests")
    rows.legend(loc="upper left")
    rows.set_ylabel("rows of the step")
    rows.set_ylim(bottom=0)
    rows.set_title("A batch takes the next larger graph; the rows between are padding")
    share.set_ylabel("padding (%)")
    share.set_ylim(0, 50)
    share.set_xlabel("B: requests decoded together")
    first = next(iter(policies.values()))
    share.set_xticks(_apart([size for size in first if size == 1 or size >= 8], max_batch_size / 28))
    share.set_xlim(0.5, max_batch_size + 0.5)
    for axes in (rows, share):
        axes.grid(axis="y")
    return fig


def _apart(sizes: Sequence[int], distance: float) -> list[int]:
    """Sizes whose numbers have room beside each other, from the largest down."""
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or kept[-1] - size >= distance:
            kept.append(size)
    return kept[::-1]


@styled
def draw_captures(batch_sizes: Sequence[int], columns: Sequence[int], reasons: Sequence[str]) -> Figure:
    """Draw the batch size of each step, and mark the steps before which a CUDA graph has to be captured.

    All three sequences have an item per step. columns: how many columns the block table has. reasons: why the
    step captures, a key of REASONS, or "" where it does not.
    """
    fig, axes = figure(3.6)
    steps = range(1, len(batch_sizes) + 1)
    axes.step(steps, batch_sizes, where="mid", color=BLUE, lw=2)
    for reason, (shade, _) in REASONS.items():
        marked = [(s, b) for s, b, r in zip(steps, batch_sizes, reasons, strict=True) if r == reason]
        if marked:
            axes.plot(*zip(*marked, strict=True), "o", color=shade, markersize=6)
    grown = [s for s, was, now in zip(steps[1:], columns, columns[1:], strict=False) if now > was]
    for step in grown:
        axes.axvline(step - 0.5, color=GREY, lw=1, ls=":")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("decode step")
    axes.set_ylabel("requests in the batch")
    captured = sum(map(bool, reasons))
    axes.set_title(f"{captured} of {len(reasons)} steps wait for a capture", pad=24)
    counts = {reason: sum(r == reason for r in reasons) for reason in REASONS}
    handles = [
        Line2D([], [], ls="", marker="o", color=shade, label=f"{words} ({counts[reason]})")
        for reason, (shade, words) in REASONS.items()
    ]
    handles.append(Line2D([], [], color=GREY, ls=":", lw=1, label="the table grows"))
    axes.legend(handles=handles, ncols=3, loc="lower left", bbox_to_anchor=(0, 0.99), borderaxespad=0)
    axes.grid(axis="y")
    return fig
