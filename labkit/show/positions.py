"""Where the requests of a batch write, step after step, and which way their batch is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.bench.workload import difference
from labkit.engine import InferenceEngine
from labkit.show.style import BLUE, GREEN, GREY, INK, ORANGE, colour, figure, styled

# By the counter's name: which of the writes a batch took.
WRITE_COLOURS = {"indexed": GREY, "generic": ORANGE, "full_batch": GREEN, "identity_pos": BLUE}
STRIP = 0.16  # of a panel's height: the strip that names the write


@dataclass(frozen=True)
class PositionsStep:
    """One decode step: the slot of its last block that each request's token went to, and the write taken."""

    slots: dict[int, int]  # by request id
    path: str

    @property
    def are_equal(self) -> bool:
        return len(set(self.slots.values())) == 1


@dataclass(frozen=True)
class Positions:
    """The decode steps of a run, on blocks of `block_size` tokens."""

    block_size: int
    steps: tuple[PositionsStep, ...]

    @property
    def num_equal(self) -> int:
        """Steps in which all requests write to the same slot."""
        return sum(step.are_equal for step in self.steps)

    def then(self, later: "Positions") -> "Positions":
        """This and what came after it."""
        return Positions(self.block_size, self.steps + later.steps)


def record_positions(engine: InferenceEngine, num_steps: int) -> Positions:
    """Run until `num_steps` more steps have decoded; tokens made are not kept. Steps that admit do not count.

    Raises ValueError if the engine runs out of work, or if it writes token by token, as rungs 00 and 01 do.
    """
    block_size = engine.kv_manager.block_size
    steps = []
    while len(steps) < num_steps:
        if not engine.has_work:
            raise ValueError(f"the requests ended after {len(steps)} of {num_steps} decode steps")
        before = engine.stats()
        running = engine.scheduler.running
        slots = {r.request_id: session.num_tokens % block_size for r, session in running.items()}
        engine.step()
        after = engine.stats()
        if after.counters.decode_steps > before.counters.decode_steps:
            steps.append(PositionsStep(slots, write_path(before.append_paths, after.append_paths)))
    return Positions(block_size, tuple(steps))


def write_path(before: dict[str, int], after: dict[str, int]) -> str:
    """The write that the layers of one step took."""
    taken = [path for path in difference(before, after) if path in WRITE_COLOURS]
    if len(taken) != 1:
        raise ValueError(f"a step took the writes {taken}; it needs one, the same in all layers")
    return taken[0]


@styled
def draw_positions(runs: Mapping[str, Positions]) -> Figure:
    """A panel a run, by its title: each request's slot against the step, and below it the write taken.

    Where lines lie on each other, the earlier request's is the wider one.
    """
    fig, panels = figure(0.5 + 1.75 * len(runs), rows=len(runs), squeeze=False, sharex=True)
    for axes, (title, run) in zip(panels[:, 0], runs.items(), strict=True):
        _draw_slots(axes, run)
        _draw_strip(axes, run)
        axes.set_title(f"{title}: equal slots in {run.num_equal} of {len(run.steps)} steps")
        axes.set_ylabel("slot")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick < run.block_size])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
    panels[-1, 0].set_xlabel("decode step (strip: how the batch is written)")
    return fig


def _draw_slots(axes: Axes, run: Positions) -> None:
    request_ids = list(dict.fromkeys(i for step in run.steps for i in step.slots))
    numbers = np.arange(1, len(run.steps) + 1)
    for row, request_id in enumerate(request_ids):
        slots = np.array([step.slots.get(request_id, np.nan) for step in run.steps], dtype=float)
        width = 2.0 + 3.0 * (len(request_ids) - 1 - row)
        for piece in np.split(np.arange(len(slots)), 1 + np.flatnonzero(np.diff(slots) < 0)):
            axes.plot(  # a line ends with its block
                numbers[piece],
                slots[piece],
                color=colour(request_id),
                lw=width,
                marker="o",
                markersize=width + 2,
                alpha=0.45 if row < len(request_ids) - 1 else 1,
                solid_capstyle="round",
                label=f"request {request_id}" if piece[0] == 0 else None,
            )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.6), borderaxespad=0.3)


def _draw_strip(axes: Axes, run: Positions) -> None:
    """A box for each stretch of steps with one write, under the slots."""
    span = run.block_size - 1
    height = STRIP * span
    bottom = -0.12 * span - height
    for path, group in groupby(enumerate(run.steps, start=1), key=lambda numbered: numbered[1].path):
        numbers = [number for number, _ in group]
        left, width = numbers[0] - 0.5, len(numbers)
        axes.broken_barh([(left, width)], (bottom, height), color=WRITE_COLOURS[path], alpha=0.35, lw=0)
        if width >= 3:  # room for its name
            axes.text(
                left + width / 2, bottom + height / 2, path, ha="center", va="center", fontsize=8, color=INK
            )
    axes.set_ylim(bottom - 0.04 * span, 1.1 * span)
    axes.set_xlim(0.3, len(run.steps) + 0.7)
