"""What each program of a kernel reads and writes: a cell per number, in the colour of the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.colours import INK, RED, SERIES
from labkit.show.style import box, figure, key_below, styled, write

if TYPE_CHECKING:  # what is drawn; the interpreter that it was seen in is not needed
    from labkit.learn.before_03.graders import Access
    from labkit.watch.accesses import KernelRun, Program

READ, WRITE = "read", "write"
MOST_COLUMNS = 64  # of two dimensions side by side; with more, a cell is too small to be seen
ROW = 0.17  # inches
READ_ALPHA = 0.35  # what is read is pale
COLOURS = tuple(shade for shade in SERIES if shade != RED)  # of programs; red is what should not be
Touches = dict[str, list["Program"]]  # of a number, by READ and WRITE


@styled
def draw_accesses(
    run: KernelRun,
    tensors: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
    numbered: bool = False,
) -> Figure:
    """Draw the numbers that each program of a launch reads (pale) and writes (full), a panel per tensor.

    tensors: those to draw, by the kernel's names, with the names of their dimensions; by default all that are
    accessed. numbered: each cell has the number's place. A number that several programs read has a slice per
    program; one that several write is red, with a cross. Accesses that meet no element of their tensor are
    counted in red below it.
    """
    tensors = tensors or {access.tensor: () for access in run.accesses} or dict.fromkeys(run.layouts, ())
    panels = [_Panel(run, name, dims) for name, dims in tensors.items()]
    colours = {program: COLOURS[i % len(COLOURS)] for i, program in enumerate(run.programs)}
    heights = [ROW * panel.num_rows + 0.48 + 0.17 * bool(panel.stray) for panel in panels]
    fig, axes = figure(0.8 + sum(heights), rows=len(panels), squeeze=False, height_ratios=heights)
    num_columns = max(panel.num_columns for panel in panels)
    for panel, place in zip(panels, axes[:, 0], strict=True):
        panel.draw(place, colours, numbered)
        place.set_xlim(-0.1, num_columns + 0.1)
    many = "" if len(run.programs) == 1 else "s"
    axes[0, 0].set_title(title or f"{run.kernel}: {len(run.programs)} program{many}")
    told = colours if len(colours) <= len(COLOURS) else {}  # where they tell the programs apart
    looks = {f"{each}" if i else f"program {each}": told[each] for i, each in enumerate(told)}
    key_below(fig, {**looks, "read": {"facecolor": INK, "alpha": READ_ALPHA}, "written": INK}, 6)
    return fig


def draw_places(accesses: Sequence[Access], shapes: Mapping[str, tuple[int, int]]) -> Figure:
    """Draw what each program of a kernel loads and stores, as `draw_accesses` does.

    shapes: the rows of each tensor and the numbers in each, by name.
    """
    from labkit.watch.accesses import Access, KernelRun, Layout

    layouts = {name: Layout(shape, (shape[1], 1)) for name, shape in shapes.items()}
    kinds = {"load": READ, "store": WRITE}
    seen = [Access(each.program, each.tensor, kinds[each.kind], each.places) for each in accesses]
    num_programs = 1 + max((each.program[0] for each in accesses), default=0)
    run = KernelRun("What each program touches", (num_programs,), layouts, seen)
    return draw_accesses(run, dict.fromkeys(shapes, ("row", "number")), numbered=True)


class _Panel:
    """A tensor as a grid of cells: its last dimensions go across, the others down."""

    def __init__(self, run: KernelRun, name: str, dims: Sequence[str]) -> None:
        layout = run.layouts[name]
        self.name, self.shape = name, layout.shape or (1,)
        self.dims = tuple(dims) or tuple(f"dimension {i}" for i in range(len(self.shape)))
        strays = [each for each in run.strays() if each.tensor == name]
        self.stray = ""
        if strays:
            self.stray = f"outside of it: {len(strays)} accesses, the first by program {strays[0].program}"
        self.touches: dict[tuple[int, ...], Touches] = defaultdict(lambda: {READ: [], WRITE: []})
        for offset, kind, program in run.touched(name):
            index = layout.index_of(offset)
            if index is not None and program not in self.touches[index or (0,)][kind]:
                self.touches[index or (0,)][kind].append(program)
        across = 2 if len(self.shape) > 2 and prod(self.shape[-2:]) <= MOST_COLUMNS else 1
        self.down, self.across = self.shape[:-across], self.shape[-across:]
        self.num_rows, self.num_columns = prod(self.down), prod(self.across)

    def draw(self, axes: Axes, colours: Mapping[Program, str], numbered: bool) -> None:
        places = product(product(*map(range, self.down)), product(*map(range, self.across)))
        for i, (row, column) in enumerate(places):
            y, x = divmod(i, self.num_columns)
            _draw_cell(axes, x, y, self.touches[row + column], colours)
            if numbered:
                write(axes, x + 0.5, y + 0.55, str(i), fontsize=7)
        group = self.across[-1]
        for x in range(0, self.num_columns + 1, group):
            axes.plot([x, x], [0, self.num_rows], color=INK, lw=0.9)
        axes.set_ylim(self.num_rows + 0.1, -0.1)
        names = [", ".join(map(str, index)) for index in product(*map(range, self.down))]
        axes.set_yticks([y + 0.5 for y in range(self.num_rows)], names, fontsize=7)
        label = f"{self.name}\n{', '.join(self.dims[: len(self.down)])}".strip()
        axes.set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center")
        if len(self.across) == 2:
            ticks = {(i + 0.5) * group: f"{self.dims[-2]} {i}" for i in range(self.across[0])}
        else:
            ticks = {i + 0.5: str(i) for i in range(group)}
        axes.set_xticks(list(ticks), list(ticks.values()), fontsize=7)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        ink = RED if self.stray else INK
        label = f"{self.dims[-1]}: 0 to {group - 1}" if len(self.across) == 2 else self.dims[-1]
        axes.set_xlabel(f"{label}\n{self.stray}".strip(), loc="left", fontsize=8, color=ink)


def _draw_cell(axes: Axes, x: int, y: int, touches: Touches, colours: Mapping[Program, str]) -> None:
    shown, alpha = (touches[WRITE], 1.0) if touches[WRITE] else (touches[READ], READ_ALPHA)
    if len(touches[WRITE]) > 1:
        box(axes, (x, y), 1, 1, fc=RED, lw=0)
        write(axes, x + 0.5, y + 0.55, "×", fontsize=8, color="white", weight="bold")
    else:
        for slot, program in enumerate(shown):
            height = 1 / len(shown)
            box(axes, (x, y + slot * height), 1, height, fc=colours[program], alpha=alpha, lw=0)
    box(axes, (x, y), 1, 1, fill=False, ec="#CCCCCC", lw=0.5)
