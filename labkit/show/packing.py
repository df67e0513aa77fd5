"""Prompts of unequal length as rows of a batch: padded to the longest, and behind each other in chunks."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.style import BLUE, GREEN, GREY, INK, RED, SERIES, figure, styled

DARK = (BLUE, GREEN, RED)  # of SERIES: white is read on them
NARROW = 0.05  # of the axis: a number needs more


@styled
def draw_packing(lengths: Sequence[int], max_tokens: int) -> Figure:
    """Draw prompts of so many tokens twice, to one scale: a row per prompt, each padded to the longest; and
    packed behind each other into chunks of `max_tokens` rows, the last of which may be shorter.

    Raises ValueError if there is no prompt.
    """
    longest, total = max(lengths), sum(lengths)
    chunks = chunks_of(lengths, max_tokens)
    width = 1.02 * max(longest, max_tokens)
    heights = [len(lengths), len(chunks)]
    fig, (padded, packed) = figure(1.9 + 0.3 * sum(heights), 2, height_ratios=heights, sharex=True)
    for row, length in enumerate(lengths):
        _box(padded, row, 0, length, row, width)
        if length < longest:
            padded.add_patch(
                Rectangle(
                    (length, row - 0.35), longest - length, 0.7, fc="white", ec=GREY, hatch="///", lw=0.6
                )
            )
    for row, chunk in enumerate(chunks):
        for prompt, first, end in chunk:
            _box(packed, row, first, end, prompt, width)
    pads = len(lengths) * longest - total
    padded.set_title(f"Padded: {len(lengths) * longest:,} rows for {total:,} tokens, {pads:,} of them pads")
    packed.set_title(f"Packed: {total:,} rows, in {len(chunks)} chunks of at most {max_tokens:,}")
    for axes, nouns, count in ((padded, "prompt", len(lengths)), (packed, "chunk", len(chunks))):
        axes.set_xlim(0, width)
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_yticks(range(count), [str(i) for i in range(count)])
        axes.set_ylabel(nouns)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    packed.set_xlabel("rows through the layers (tokens)")
    handles = [
        Patch(facecolor=SERIES[0], label="tokens of a prompt, a colour each"),
        Patch(facecolor="white", edgecolor=GREY, hatch="///", label="pads"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=2)
    return fig


def _box(axes: Axes, row: int, first: int, end: int, prompt: int, width: float) -> None:
    face = SERIES[prompt % len(SERIES)]
    axes.add_patch(Rectangle((first, row - 0.35), end - first, 0.7, fc=face, ec="white", lw=0.8))
    if end - first > NARROW * width:
        ink = "white" if face in DARK else INK
        axes.text((first + end) / 2, row, f"{prompt}", ha="center", va="center", fontsize=8.5, color=ink)


def chunks_of(lengths: Sequence[int], max_tokens: int) -> list[list[tuple[int, int, int]]]:
    """Prompt, first row and end of each piece, by chunk: first come, first served."""
    chunks: list[list[tuple[int, int, int]]] = [[]]
    room = max_tokens
    for prompt, length in enumerate(lengths):
        while length:
            if not room:
                chunks.append([])
                room = max_tokens
            count = min(length, room)
            chunks[-1].append((prompt, max_tokens - room, max_tokens - room + count))
            length, room = length - count, room - count
    return chunks
