"""Attention with its tokens split among programs: how many programs there are, which tokens each reads, and
how long it takes."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.results.attention_time import ONE_PROGRAM, SPLIT, AttentionTime
from labkit.show.style import BLUE, GREY, INK, colour, figure, styled


@styled
def draw_programs(
    batch_sizes: Sequence[int], num_heads: int, splits: Sequence[int], multiprocessors: int, at_once: int
) -> Figure:
    """Draw the programs of one layer's attention against the batch size: one program per request and head,
    and split.

    splits: programs per request and head, for each batch size. multiprocessors: of the GPU, as a line, and so
    is how many programs it runs at once.
    """
    fig, axes = figure(3.6)
    one = [B * num_heads for B in batch_sizes]
    split = [rows * s for rows, s in zip(one, splits, strict=True)]
    axes.plot(batch_sizes, one, color=GREY, marker="s", label="one program per request and head")
    axes.plot(batch_sizes, split, color=BLUE, marker="o", label="split (× how many per request and head)")
    for B, programs, s in zip(batch_sizes, split, splits, strict=True):
        axes.annotate(f"× {s}", (B, programs), xytext=(0, 7), textcoords="offset points", ha="center")
    for programs, B, side, text in (
        (multiprocessors, max(batch_sizes), "right", "multiprocessors: below, some have nothing to do"),
        (at_once, min(batch_sizes), "left", "run at once"),
    ):
        axes.axhline(programs, color=INK, lw=1.2, ls="--")
        place = {"xytext": (0, -4), "textcoords": "offset points", "va": "top"}
        axes.annotate(f"{programs:,} {text}", (B, programs), ha=side, **place)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batch_sizes, [str(B) for B in batch_sizes])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(y=0.12)
    axes.grid()
    axes.set_xlabel("B: requests of a step")
    axes.set_ylabel("programs")
    axes.set_title("Programs of one layer's attention")
    axes.legend(loc="upper left")
    return fig


# (first token, number of tokens, program) of each piece
Pieces = Sequence[tuple[int, int, int]]


@styled
def draw_shares(ways: Mapping[str, Mapping[str, Pieces]]) -> Figure:
    """Draw how tokens are split among programs, a panel per way to split and a row per request, by name: its
    tokens in pieces, coloured by program."""
    num_rows = sum(len(requests) for requests in ways.values())
    fig, all_axes = figure(1.0 + 0.5 * num_rows, rows=len(ways), sharex=True)
    for axes, (way, requests) in zip(all_axes, ways.items(), strict=True):
        for row, pieces in enumerate(requests.values()):
            _draw_pieces(axes, row, pieces)
        axes.set_yticks(range(len(requests)), list(requests))
        axes.set_ylim(len(requests) - 0.5, -0.5)
        axes.set_title(way)
    axes.set_xlabel("tokens in the cache (in each piece, the number of the program that reads it)")
    return fig


def _draw_pieces(axes: Axes, row: int, pieces: Pieces) -> None:
    totals: dict[int, int] = {}
    for first, count, program in pieces:
        axes.barh(row, count, 0.6, first, color=colour(program), alpha=0.75, edgecolor="white", lw=0.6)
        axes.text(first + count / 2, row, str(program), ha="center", va="center", fontsize=6.5)
        totals[program] = totals.get(program, 0) + count
    text = f"{len(totals)} at work,\nat most {max(totals.values())} tokens"
    axes.text(1.02, row, text, va="center", transform=axes.get_yaxis_transform())


@styled
def draw_attention_times(times: Sequence[AttentionTime], bandwidth: float) -> Figure:
    """Draw one layer's attention against the context length, a colour per batch size: above its time, below
    the bytes that it moves per second.

    bandwidth: bytes per second of a large copy on the device, of which the lower panel shows the per cent.
    """
    fig, (top, bottom) = figure(6.2, rows=2, sharex=True)
    sizes = sorted({time.batch_size for time in times})
    for i, batch_size in enumerate(sizes):
        for kernel, name, look in (
            (ONE_PROGRAM, "rung 07's kernel", {"ls": "--", "marker": "s"}),
            (SPLIT, "rung 09's kernel", {"marker": "o"}),
        ):
            line = [time for time in times if (time.batch_size, time.kernel) == (batch_size, kernel)]
            line.sort(key=lambda time: time.context_len)
            x = [time.context_len for time in line]
            look = {**look, "color": colour(i), "markersize": 5, "label": f"B = {batch_size}, {name}"}
            top.plot(x, [time.us for time in line], **look)
            bottom.plot(x, [100 * time.rate / bandwidth for time in line], **look)
    bottom.axhline(100, color=INK, lw=1.2, ls=":")
    lengths = sorted({time.context_len for time in times})
    for axes in (top, bottom):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.grid()
    top.set_yscale("log")
    top.yaxis.set_major_formatter("{x:,g}")
    top.set_ylabel("microseconds")
    bottom.set_ylabel("% of a copy's rate")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("tokens in the cache of each request")
    top.set_title("One layer's attention by itself")
    bottom.set_title("What it moves in a second (dotted: a large copy)")
    fig.legend(*top.get_legend_handles_labels(), loc="outside lower center", ncols=max(2, len(sizes)))
    return fig
