"""A small pool of blocks, moment by moment, with a number in each slot."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import BLUE, GREY, INK, ORANGE, PALE, RED, figure, styled

COLOURS = {"A": BLUE, "B": ORANGE}


class PoolFrame(NamedTuple):
    """A pool at one moment: the number of the token in each slot of each block, 0 where none was written, and
    the letters of those that hold each block, "" for a free one."""

    title: str
    slots: tuple[tuple[int, ...], ...]  # [N][block_size]
    holders: tuple[str, ...]


@styled
def draw_pool_frames(rows: Mapping[str, Sequence[PoolFrame]], owners: Mapping[int, str]) -> Figure:
    """Draw the moments of several runs, a row per run, by its title, and a panel per moment.

    owners: the letter of the request that a token belongs to; a token that is nobody's own is grey. A token
    in a block that its owner does not hold is framed: whoever reads that block reads another's token.
    """
    num_columns = max(map(len, rows.values()))
    num_blocks = max(len(frame.slots) for frames in rows.values() for frame in frames)
    height = 0.6 + 0.5 * num_blocks  # of a row
    fig, panels = figure(0.4 + height * len(rows), rows=len(rows), ncols=num_columns, squeeze=False)
    for line, (name, frames) in zip(panels, rows.items(), strict=True):
        for axes in line:
            axes.axis("off")
        for axes, frame in zip(line, frames, strict=False):
            _draw_frame(axes, frame, owners)
        line[0].text(-0.02, 1 + 0.6 / num_blocks, name, transform=line[0].transAxes, weight="bold", color=INK)
    return fig


def _draw_frame(axes: Axes, frame: PoolFrame, owners: Mapping[int, str]) -> None:
    block_size = len(frame.slots[0])
    for block, (numbers, holders) in enumerate(zip(frame.slots, frame.holders, strict=True)):
        y = -1.5 * block
        told = f"block {block}: " + (" and ".join(holders) if holders else "free")
        axes.text(0, y + 1.08, told, va="bottom", fontsize=8, color=INK if holders else GREY)
        for slot, number in enumerate(numbers):
            _draw_slot(axes, slot, y, number, owners.get(number, ""), holders)
    axes.set_xlim(-0.1, block_size + 0.6)
    axes.set_ylim(-1.5 * (len(frame.slots) - 1) - 0.15, 1.5)
    axes.set_title(frame.title, fontsize=9, weight="normal")


def _draw_slot(axes: Axes, slot: int, y: float, number: int, owner: str, holders: str) -> None:
    face = COLOURS[owner] if owner else PALE if number else "white"
    axes.add_patch(Rectangle((slot, y), 1, 1, facecolor=face, alpha=0.6 if owner else 1, lw=0))
    is_anothers = bool(owner) and bool(holders) and owner not in holders
    edge, width = (RED, 2.5) if is_anothers else (INK if holders else GREY, 0.8)
    axes.add_patch(Rectangle((slot, y), 1, 1, fill=False, edgecolor=edge, lw=width, zorder=2 + is_anothers))
    if number:
        axes.text(slot + 0.5, y + 0.5, str(number), ha="center", va="center", fontsize=9, color=INK)
