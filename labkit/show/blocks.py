"""Pictures of the KV cache's blocks, taken from a live engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.engine import InferenceEngine
from labkit.show.style import GREY, INK, PALE, colour, figure, styled

CELLS_ACROSS = 25  # tokens that a row of the figure holds
LARGEST_BLOCK = 16  # what fits beside a sequence's name


@dataclass(frozen=True)
class SequenceView:
    """A sequence and where one layer keeps it."""

    label: str
    colour: str
    tokens: tuple[str, ...]
    block_indices: tuple[int, ...]


@dataclass(frozen=True)
class BlockView:
    """One block of the pool: how many tokens are in it and how many sequences hold it."""

    length: int
    refcount: int


@dataclass(frozen=True)
class BlocksSnapshot:
    """One layer's pool at a moment."""

    layer_idx: int
    block_size: int
    num_blocks: int
    sequences: tuple[SequenceView, ...]
    blocks: dict[int, BlockView]  # by block index; those not named are free

    def table(self) -> pd.DataFrame:
        """Each sequence's block table in words."""
        rows = [
            {
                "sequence": s.label,
                "tokens": len(s.tokens),
                "block table": str(list(s.block_indices)),
                "held by": str([self.blocks[i].refcount for i in s.block_indices]),
                "tokens in last block": self.blocks[s.block_indices[-1]].length,
            }
            for s in self.sequences
        ]
        return pd.DataFrame(rows).set_index("sequence")


def snapshot(engine: InferenceEngine, layer_idx: int = 0) -> BlocksSnapshot:
    """What layer `layer_idx` of a live engine holds: running requests first, then prefix entries."""
    decode, manager = engine.model.tokenizer.decode, engine.kv_manager
    holders = [
        (f"request {r.request_id}", colour(r.request_id), session, r.token_ids)
        for r, session in engine.scheduler.running.items()
    ]
    entries = engine.prefix_cache or ()
    holders += [(f"prefix {i}", GREY, entry, entry.token_ids) for i, entry in enumerate(entries)]
    blocks, sequences = {}, []
    for label, shade, holder, token_ids in holders:
        block_ids = holder.block_ids_per_layer[layer_idx]
        for block_id in block_ids:
            info = manager.info(block_id)
            blocks[info.block_index] = BlockView(info.length, manager.refcount(block_id))
        tokens = tuple(decode([t]) for t in token_ids[: holder.num_tokens])
        indices = tuple(manager.info(i).block_index for i in block_ids)
        sequences.append(SequenceView(label, shade, tokens, indices))
    return BlocksSnapshot(
        layer_idx, manager.block_size, manager.max_blocks_per_layer, tuple(sequences), blocks
    )


@styled
def draw_blocks(snap: BlocksSnapshot, title: str = "") -> Figure:
    """Above: each sequence's tokens in their logical blocks, with the physical block's number.
    Below: the pool, each block in the colours of those who hold it.

    Raises ValueError for blocks too large to draw.
    """
    if snap.block_size > LARGEST_BLOCK:
        raise ValueError(
            f"a block of {snap.block_size} tokens is too large to draw; give the engine to be drawn a "
            f"block_size of {LARGEST_BLOCK} or less"
        )
    per_row = max(1, (CELLS_ACROSS + 1) // (snap.block_size + 1))
    pool_rows = -(-snap.num_blocks // per_row)
    heights = [max(1, len(snap.sequences)) * 1.5 + 0.4, pool_rows * 1.7]
    fig, (top, bottom) = figure(0.55 + 0.37 * sum(heights), rows=2, height_ratios=heights)
    for row, sequence in enumerate(snap.sequences):
        _draw_sequence(top, sequence, snap.block_size, -1.5 * row)
    top.set_title(title or "Logical blocks: what each sequence sees")
    bottom.set_title(f"Physical blocks: where it lies in layer {snap.layer_idx}'s pool")
    for index in range(snap.num_blocks):
        x, y = (index % per_row) * (snap.block_size + 1), -1.7 * (index // per_row)
        _draw_physical(bottom, snap, index, x, y)
    for axes, height in ((top, heights[0]), (bottom, heights[1])):
        axes.set_xlim(-0.1, CELLS_ACROSS + 0.1)
        axes.set_ylim(1.6 - height, 1.55)
        axes.axis("off")
    return fig


def _draw_sequence(axes: Axes, sequence: SequenceView, block_size: int, y: float) -> None:
    gaps = len(sequence.block_indices)
    room = int((CELLS_ACROSS - 4) // (1 + 0.25 / block_size)) // block_size * block_size
    hidden = max(0, -(-(len(sequence.tokens) - room) // block_size)) if gaps else 0  # whole blocks
    axes.text(0, y + 0.5, sequence.label, va="center", weight="bold", color=INK, fontsize=9)
    x = 4.0
    if hidden:
        axes.text(x - 0.15, y + 0.5, f"+{hidden * block_size}", va="center", ha="right", fontsize=7)
    for place in range(hidden, gaps):
        tokens = sequence.tokens[place * block_size : (place + 1) * block_size]
        for i in range(block_size):
            filled = i < len(tokens)
            axes.add_patch(
                Rectangle(
                    (x + i, y), 1, 1, facecolor=sequence.colour if filled else "white", alpha=0.35, lw=0
                )
            )
            if filled:
                axes.text(x + i + 0.5, y + 0.5, cell_text(tokens[i]), ha="center", va="center", fontsize=6.5)
        axes.add_patch(Rectangle((x, y), block_size, 1, fill=False, edgecolor=INK, lw=0.9))
        number = f"block {sequence.block_indices[place]}"
        axes.text(x + block_size / 2, y + 1.04, number, ha="center", va="bottom", fontsize=7, color=INK)
        x += block_size + 0.25


def _draw_physical(axes: Axes, snap: BlocksSnapshot, index: int, x: float, y: float) -> None:
    holders = [s for s in snap.sequences if index in s.block_indices]
    length = snap.blocks[index].length if holders else 0
    axes.add_patch(Rectangle((x, y), snap.block_size, 1, facecolor=PALE if holders else "white", lw=0))
    for stripe, holder in enumerate(holders):  # a shared block shows every holder's colour
        height = 1 / len(holders)
        axes.add_patch(
            Rectangle((x, y + stripe * height), length, height, facecolor=holder.colour, alpha=0.6, lw=0)
        )
    shared = len(holders) > 1
    axes.add_patch(
        Rectangle(
            (x, y),
            snap.block_size,
            1,
            fill=False,
            edgecolor=INK if holders else GREY,
            lw=2 if shared else 0.8,
        )
    )
    label = f"{index}" + (f" · held by {len(holders)}" if shared else "" if holders else " · free")
    axes.text(x, y + 1.06, label, va="bottom", fontsize=7, color=INK if holders else GREY)


def cell_text(token: str) -> str:
    """A token as a cell can show it: blanks and line ends visible, long ones cut."""
    shown = token.replace("\n", "↵").replace(" ", "·")
    return shown if len(shown) <= 5 else shown[:4] + "…"


def record_steps(engine: InferenceEngine, num_steps: int) -> list[BlocksSnapshot]:
    """Run `num_steps` steps; the snapshots before the first and after each. Tokens made are not kept."""
    snapshots = [snapshot(engine)]
    for _ in range(num_steps):
        engine.step()
        snapshots.append(snapshot(engine))
    return snapshots


def blocks_slider(snapshots: Sequence[BlocksSnapshot]) -> None:
    """The same figure with a slider over the snapshots, for JupyterLab."""
    from ipywidgets import IntSlider, interact

    def show(step: int) -> None:
        draw_blocks(snapshots[step], f"Step {step} of {len(snapshots) - 1}")
        plt.show()

    interact(show, step=IntSlider(value=0, min=0, max=len(snapshots) - 1, continuous_update=False))
