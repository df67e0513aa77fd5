"""Which numbers the programs of a kernel load and store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.style import INK, PALE, RED, colour, figure, styled

if TYPE_CHECKING:  # what is drawn; the kernel that it was recorded from is not needed
    from labkit.learn.before_03.record import Access

MOST_CELLS = 40  # in a row of the figure: with more, a cell is too narrow for its number
DONE = {"load": "loaded", "store": "stored"}


@styled
def draw_places(accesses: Sequence[Access], shapes: Mapping[str, tuple[int, int]]) -> Figure:
    """Draw which program touches which numbers, a group of cells per tensor: a cell has the colours of all
    programs that load it, or store it. Grey numbers are left alone; a red edge lies beyond the tensor's end.

    shapes: the rows of each tensor and the numbers in each, by name. Raises ValueError for rows of more than
    MOST_CELLS numbers.
    """
    touched = {name: _touched(accesses, name) for name in shapes}
    rows = {name: _num_rows(shape, touched[name]) for name, shape in shapes.items()}
    columns = [
        column for name, shape in shapes.items() for _, column in _cells(shape, touched[name]).values()
    ]
    left, right = min(columns), max(columns) + 1
    if right - left > MOST_CELLS:
        raise ValueError(f"{right - left} numbers are too many for a row; the most is {MOST_CELLS}")
    height = sum(rows.values()) + 1.3 * len(shapes)
    fig, axes = figure(0.55 + 0.3 * height)
    titles = {name: f"{name}: {_done(accesses, name)}" for name in shapes}
    fig.set_label("What each program touches. " + ". ".join(titles.values()))
    top = 0.0
    for name, shape in shapes.items():
        axes.text(0, top - 0.55, titles[name], weight="bold", va="center", color=INK)
        _draw_tensor(axes, top - 1.1, shape, touched[name])
        top -= rows[name] + 1.3
    programs = sorted({access.program for access in accesses})
    handles = [
        Patch(facecolor=colour(i), alpha=0.6, label=f"program {', '.join(map(str, program))}")
        for i, program in enumerate(programs)
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)))
    axes.set_xlim(left - 0.1, max(right, left + 16) + 0.1)
    axes.set_ylim(top, 0)
    axes.axis("off")
    return fig


def _done(accesses: Sequence[Access], tensor: str) -> str:
    """What programs do with a tensor, in words."""
    kinds = {access.kind for access in accesses if access.tensor == tensor}
    return " and ".join(DONE[kind] for kind in sorted(kinds)) or "left alone"


def _touched(accesses: Sequence[Access], tensor: str) -> dict[int, list[int]]:
    """The programs that touch each place of a tensor, by their number in order."""
    programs = sorted({access.program for access in accesses})
    found: dict[int, set[int]] = {}
    for access in accesses:
        for place in access.places if access.tensor == tensor else ():
            found.setdefault(place, set()).add(programs.index(access.program))
    return {place: sorted(owners) for place, owners in found.items()}


def _cells(shape: tuple[int, int], touched: Mapping[int, list[int]]) -> dict[int, tuple[int, int]]:
    """Row and column of each place of a tensor, and of those beyond its ends that are touched. A tensor of
    one row goes on in that row."""
    count, columns = shape
    places = sorted({*range(count * columns), *touched})
    return {place: (0, place) if count == 1 else divmod(place, columns) for place in places}


def _num_rows(shape: tuple[int, int], touched: Mapping[int, list[int]]) -> int:
    return max(row for row, _ in _cells(shape, touched).values()) + 1


def _draw_tensor(axes: Axes, top: float, shape: tuple[int, int], touched: Mapping[int, list[int]]) -> None:
    """Draw the cells of a tensor, its first row under `top`."""
    size = shape[0] * shape[1]
    for place, (row, x) in _cells(shape, touched).items():
        y = top - row - 1
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=PALE, lw=0))
        owners = touched.get(place, [])
        for stripe, owner in enumerate(owners):  # a number that several touch shows every one's colour
            part = 1 / len(owners)
            shade = colour(owner)
            axes.add_patch(Rectangle((x, y + stripe * part), 1, part, facecolor=shade, alpha=0.6, lw=0))
        edge = {"edgecolor": INK, "lw": 0.6}
        if not 0 <= place < size:
            edge = {"edgecolor": RED, "lw": 2, "ls": "--", "zorder": 3}
        axes.add_patch(Rectangle((x, y), 1, 1, fill=False, **edge))
        axes.text(x + 0.5, y + 0.5, str(place), ha="center", va="center", fontsize=8.5, color=INK)
