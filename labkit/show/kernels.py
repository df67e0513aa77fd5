"""Figures of kernels and their programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from labkit.show.colours import BLUE, GREEN, GREY, GREY_INK, INK, ORANGE, PALE, PURPLE, SKY, colour
from labkit.show.lanes import Box, Rows, draw_boxes
from labkit.show.style import beside, box, figure, key_below, name_rows, styled, write

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.learn.before_03.occupancy import GPU

GAP = 1.1  # between two matrices, in heads
# By name: groups of outputs that are cut each, their size in E, whether by outputs, and what stands behind.
MATRICES = (
    ("qkv", 3, 1, True, "attention,\nhead by head"),
    ("attention_out", 1, 1, False, "Σ"),
    ("mlp_in", 1, 4, True, "GELU, value\nby value"),
    ("mlp_out", 1, 1, False, "Σ"),
)
BOX = 0.62  # height of a kernel's box, or a step's bar


class KernelBox(NamedTuple):
    """A kernel of a layer: how many kernels of the row above it replaces (`spans`), and how many numbers it
    writes to memory."""

    name: str
    spans: int
    writes: int


@styled
def draw_layer_kernels(rows: Mapping[str, Sequence[KernelBox]]) -> Figure:
    """Draw the kernels of one layer, a row of boxes for each way to compute it, by name, in order; under a
    box, how many numbers it writes to memory."""
    fig, axes = figure(0.75 + 0.95 * len(rows))
    for row, boxes in enumerate(rows.values()):
        left = 0
        for kernel in boxes:
            shade = BLUE if "linear" in kernel.name else ORANGE if "attention" in kernel.name else GREY
            place = (left + 0.04, row - BOX / 2)
            box(axes, place, kernel.spans - 0.08, BOX, fc=shade, alpha=0.35, ec=shade)
            name = kernel.name if kernel.spans > 1 else kernel.name.replace("_", "\n")
            middle, below = left + kernel.spans / 2, row + BOX / 2 + 0.03
            write(axes, middle, row, name, fontsize=9)
            axes.text(middle, below, f"{kernel.writes:,}", ha="center", va="top", fontsize=8.5)
            left += kernel.spans
    width = max(sum(kernel.spans for kernel in boxes) for boxes in rows.values())
    axes.set(xlim=(-0.03, width + 0.03), ylim=(len(rows) - 0.35, -0.5))
    names = [f"{name}\n{len(boxes)} kernels" for name, boxes in rows.items()]
    axes.set_yticks(range(len(rows)), names)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title("One layer of a decode step; under each kernel the values that it writes to memory")
    return fig


def draw_shares(ways: Mapping[str, Mapping[str, Sequence[tuple[int, int, int]]]]) -> Figure:
    """Draw how tokens are split among programs, a panel per way to split and a row per request, by name: its
    tokens in pieces, coloured by program; of each piece the first token, how many, and the program."""
    shown: dict[str, Rows] = {}
    for way, requests in ways.items():
        names, boxes = [], []
        for row, (name, pieces) in enumerate(requests.items()):
            totals: Counter[int] = Counter()
            for first, count, program in pieces:
                boxes.append(Box(row, first, first + count, colour(program), str(program)))
                totals[program] += count
            names.append(f"{name}: {len(totals)} at work,\nat most {max(totals.values())} tokens each")
        shown[way] = names, boxes
    across = "tokens in the cache (in each piece, the number of the program that reads it)"
    return draw_boxes(shown, across, {}, 1)


MOST_WAVES = 6  # that are drawn
FILLED = LinearSegmentedColormap.from_list("filled", [PALE, GREEN])


@styled
def draw_multiprocessor(gpu: GPU) -> Figure:
    """Draw a GPU, with its multiprocessors above its L2 cache and its memory, and one multiprocessor, large:
    places for warps, registers, shared memory."""
    fig, axes = figure(3.6)
    across = 12
    for i in range(gpu.multiprocessors):
        x, y = i % across, 11 - i // across
        shade = ORANGE if i == across - 1 else SKY
        box(axes, (x + 0.08, y + 0.08), 0.84, 0.84, fc=shade, alpha=0.7, lw=0)
    _box(axes, (0, -1.1), 12, 1.0, BLUE, f"L2 cache, {gpu.l2_mb} MB")
    _box(axes, (0, -2.6), 12, 1.4, GREY, f"memory, {gpu.memory_gb} GB")
    titles = f"{gpu.name}: {gpu.multiprocessors} multiprocessors", "One of them"
    fig.set_label(". ".join(titles))
    for x, title in zip((0, 14), titles, strict=True):
        axes.text(x, 12.5, title, weight="bold", va="center")
    for corner in (0.0, 12.0):  # from the small square to the large one
        axes.plot([12, 14], [11 + corner / 12, corner - 0.1], color=ORANGE, lw=1)
    box(axes, (14, -0.1), 13.4, 12.1, fill=False, ec=ORANGE, lw=2)
    for i in range(gpu.warps):
        x, y = 14.4 + 0.78 * (i % 16), 10.9 - 0.85 * (i // 16)
        box(axes, (x, y), 0.66, 0.7, fc=GREEN, alpha=0.6, lw=0)
    axes.text(14.4, 7.6, f"places for {gpu.warps} warps of 32 threads, {gpu.programs} programs", va="center")
    kb = gpu.registers * 4 // 1024
    _box(axes, (14.4, 4.9), 12.5, 1.9, SKY, f"{gpu.registers:,} registers ({kb} KB), each one thread's")
    _box(
        axes, (14.4, 2.5), 12.5, 1.9, PURPLE, f"{gpu.shared_kb} KB of shared memory, each part one program's"
    )
    _box(axes, (14.4, 0.4), 12.5, 1.6, PALE, "arithmetic units, tensor cores")
    axes.set(xlim=(-0.2, 27.8), ylim=(-2.8, 13.1))
    axes.axis("off")
    return fig


def _box(axes: Axes, corner: tuple[float, float], width: float, height: float, shade: str, text: str) -> None:
    box(axes, corner, width, height, fc=shade, alpha=0.45, ec=INK, lw=0.6)
    middle = (corner[0] + width / 2, corner[1] + height / 2)
    write(axes, *middle, text, fontsize=9, color=INK)


@styled
def draw_occupancy(room: Mapping[str, int], waves: Sequence[Sequence[int]], title: str) -> Figure:
    """Draw how many programs a multiprocessor holds by each of its limits, the smallest in orange, and how
    full the multiprocessors are in each wave.

    room: programs by the limit's name. waves: programs on each multiprocessor, a list per wave; the first
    MOST_WAVES are drawn.
    """
    fit = min(room.values())
    shown = waves[:MOST_WAVES]
    heights = [0.34 * len(room), 0.3 * max(len(shown), 1)]
    fig, (top, bottom) = figure(1.75 + sum(heights), rows=2, height_ratios=heights)
    for row, count in enumerate(room.values()):
        top.barh(row, count, 0.62, color=ORANGE if count == fit else SKY)
        top.text(count, row, f" {count}", va="center", fontsize=9)
    name_rows(top, [f"by {name}" for name in room])
    top.set_xscale("symlog", base=2, linthresh=1)
    top.set_xlim(0, 1.35 * max(room.values()))
    top.set_xticks([count for count in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256) if count <= max(room.values())])
    top.xaxis.set_major_formatter("{x:.0f}")
    top.set(xlabel="programs that one multiprocessor holds at a time (the smallest decides)", title=title)
    if shown:
        cells = np.array(shown) / max(fit, 1)
        bottom.pcolormesh(cells, cmap=FILLED, vmin=0, vmax=1, edgecolor="white", lw=0.3)
        for row, wave in enumerate(shown):
            beside(bottom, row + 0.5, f"{sum(wave):,}", x=1.01, fontsize=9)
    bottom.set_yticks(np.arange(len(shown)) + 0.5, [f"wave {i + 1}" for i in range(len(shown))])
    bottom.set_ylim(max(len(shown), 1), 0)
    hidden = len(waves) - len(shown)
    more = f"; {hidden} more waves are not drawn" if hidden else ""
    bottom.set_xlabel(f"multiprocessor (green: full; on the right: programs in the wave{more})")
    return fig


@styled
def draw_search(scores: Sequence[float], k: int, guesses: Sequence[float]) -> Figure:
    """Draw a row's scores twice: sorted, with the k-th marked, and in their places, with the guesses of a
    search as lines, which end behind the tokens in their order, and the cut that it has found.

    Kept are the k largest, and what ties with the last of them.
    """
    numbers = np.asarray(scores)
    order = np.argsort(-numbers, kind="stable")
    cut = numbers[order[k - 1]]
    fig, (sort, search) = figure(3.6, ncols=2, sharey=True)
    _draw_bars(sort, numbers[order], order, cut)
    sort.axvline(k - 0.5, color=INK, lw=1.5)
    sort.annotate(f"the {k}th is the cut", (k - 0.4, numbers.max()), va="top", fontsize=9)
    sort.set(title=f"A sort moves all {len(numbers)} tokens", ylabel="score")
    _draw_bars(search, numbers, np.arange(len(numbers)), cut)
    first = len(numbers) + 1  # the guesses are behind the tokens, one after another
    places = range(first, first + len(guesses))
    search.hlines(guesses, -0.5, places, color=ORANGE, lw=1, ls="--")
    search.plot(places, guesses, "o-", color=ORANGE, markersize=7, markeredgecolor=INK)
    search.axhline(cut, color=INK, lw=1.5)
    search.axvline(first - 0.75, color=GREY, lw=0.8)
    names = [*range(len(numbers)), *range(1, len(guesses) + 1)]
    search.set_xticks([*range(len(numbers)), *places], [str(name) for name in names], fontsize=8)
    search.set_xlabel("token id, and the number of the guess")
    search.set_title(f"A search moves none: {len(guesses)} guesses")
    dropped = {"facecolor": GREY, "hatch": "//", "edgecolor": "white"}
    key_below(fig, {"kept": BLUE, "dropped": dropped, "a guess": ORANGE, "the cut": INK}, 4)
    return fig


def _draw_bars(axes: Axes, scores: np.ndarray, token_ids: np.ndarray, cut: float) -> None:
    for place, score in enumerate(scores):
        look = {"color": BLUE} if score >= cut else {"color": GREY, "hatch": "//", "edgecolor": "white"}
        axes.bar(place, score, width=0.75, **look)
    axes.set_xticks(range(len(scores)), [str(token_id) for token_id in token_ids], fontsize=8)
    axes.set_xlabel("token id")


@styled
def draw_shards() -> Figure:
    """Draw the four matrices of a layer, and in colours which of two ranks has what; between them, what
    happens to the values that they make."""
    fig, axes = figure(3.4)
    num_heads = 4
    left, height = 0.0, 4.0 * num_heads
    for name, groups, size, by_outputs, behind in MATRICES:
        inputs, outputs = (4 if name == "mlp_out" else 1) * num_heads, size * num_heads
        corner = left, height / 2 - groups * outputs / 2
        for group in range(groups):
            bottom = corner[1] + group * outputs  # of a matrix [outputs, inputs], outputs downwards
            width, tall = (inputs, outputs / 2) if by_outputs else (inputs / 2, outputs)
            for rank in (0, 1):
                place = (left, bottom + (1 - rank) * tall) if by_outputs else (left + rank * width, bottom)
                box(axes, place, width, tall, fc=colour(rank), alpha=0.6, ec=INK, lw=0.8)
        write(axes, left + inputs / 2, -1.3, name, weight="bold", color=INK)
        cut = "by outputs" if by_outputs else "by inputs"
        write(axes, left + inputs / 2, -2.9, cut, fontsize=9, color=GREY_INK)
        left += inputs + GAP
        look = {"fontsize": 14, "weight": "bold"} if behind == "Σ" else {"fontsize": 8.5}
        write(axes, left + 1.4, height / 2, behind, color=INK, **look)
        left += 2.8 + GAP
    axes.set(xlim=(-0.5, left - GAP), ylim=(-3.6, height + 0.5))
    axes.set_axis_off()
    axes.set_title("A layer on two GPUs: by outputs, by inputs, a sum, and the same again")
    looks = {f"rank {rank}": {"facecolor": colour(rank), "alpha": 0.6} for rank in (0, 1)}
    key_below(fig, looks, 2)
    return fig
