"""Which rows of the block table were made anew, step by step, and why; and what that does to a step."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.kvcache import CachedBlockTables
from labkit.show.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    YELLOW,
    colour,
    figure,
    styled,
)

MARK = -1  # no block has this number
COLUMNS = ("step", "request", "layer", "tokens", "blocks", "reason")
REASONS = {  # the colour and the words of the legend
    "kept": (PALE, "kept: the blocks are the same"),
    "first": (GREY, "first: there was no row yet"),
    "boundary": (BLUE, "boundary: one more block"),
    "copy_on_write": (ORANGE, "copy-on-write: the last block is a copy now"),
    "forgotten": (PURPLE, "made anew although the blocks are the same"),
    "changed": (YELLOW, "the blocks changed in another way"),
    "stale": (RED, "kept although the blocks changed: wrong"),
}


class RowWatch:
    """Tells rows that are made anew from rows that are kept, seen from outside: before a session is asked
    again, the last entry of the row it gave earlier gets a mark, which a row made anew has lost.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[InferenceSession, int], tuple[Tensor, list[int]]] = {}

    def ask(self, session: InferenceSession, layer_idx: int, offset: int) -> tuple[Tensor, str]:
        """The session's row as it is, and one of REASONS."""
        key, block_ids = (session, layer_idx), list(session.block_ids_per_layer[layer_idx])
        if key not in self._seen:
            row, reason = session.get_paged_block_table_row_cpu(layer_idx=layer_idx, offset=offset), "first"
        else:
            earlier, blocks_then = self._seen[key]
            last_entry = earlier[-1].item()
            earlier[-1:].fill_(MARK)
            row = session.get_paged_block_table_row_cpu(layer_idx=layer_idx, offset=offset)
            kept = row[-1].item() == MARK
            if kept:
                row[-1:].fill_(last_entry)
            reason = reason_of(kept, blocks_then, block_ids)
        self._seen[key] = row, block_ids
        return row, reason


def reason_of(kept: bool, before: Sequence[int], after: Sequence[int]) -> str:
    """Which of REASONS it is when a row was kept, or made anew, while its blocks became others."""
    if kept:
        return "kept" if before == after else "stale"
    if before == after:
        return "forgotten"
    if after[:-1] == before:
        return "boundary"
    if len(after) == len(before) and after[:-1] == before[:-1]:
        return "copy_on_write"
    return "changed"


class WatchedSession:
    """A session as `CachedBlockTables.fill` sees one, which tells of each row that it is asked for."""

    def __init__(
        self, session: InferenceSession, watch: RowWatch, tell: Callable[[int, str], object]
    ) -> None:
        self._session, self._watch, self._tell = session, watch, tell

    def get_paged_block_table_row_cpu(self, *, layer_idx: int, offset: int) -> Tensor:
        row, reason = self._watch.ask(self._session, layer_idx, offset)
        self._tell(layer_idx, reason)
        return row


def record_rows(engine: InferenceEngine, num_steps: int) -> pd.DataFrame:
    """Run `num_steps` steps; a line for each row that a decode step asked for, of every request and layer.

    `tokens` and `blocks` are what the request held when the step began; `reason` is one of REASONS. Tokens
    made are not kept. A row that was made before the recording began counts as first when it is seen first.
    Raises ValueError if the engine's sessions keep no rows.
    """
    tables = engine.decode_step.block_tables
    if not isinstance(tables, CachedBlockTables):
        raise ValueError(f"an engine with block_tables={engine.options.block_tables!r} keeps no rows")
    watch, lines, fill = RowWatch(), [], tables.fill
    steps_before = engine.stats().counters.steps

    def watched(session: InferenceSession, step: int, request_id: int) -> WatchedSession:
        def tell(layer_idx: int, reason: str) -> None:
            num_blocks = len(session.block_ids_per_layer[layer_idx])
            lines.append((step, request_id, layer_idx, session.num_tokens, num_blocks, reason))

        return WatchedSession(session, watch, tell)

    def watched_fill(block_tables_cpu: Tensor, sessions: Sequence[InferenceSession]) -> None:
        step = engine.stats().counters.steps - steps_before
        ids = {session: request.request_id for request, session in engine.scheduler.running.items()}
        fill(block_tables_cpu, [watched(session, step, ids[session]) for session in sessions])

    tables.fill = watched_fill
    try:
        for _ in range(num_steps):
            engine.step()
    finally:
        del tables.fill  # the class's own again
    return pd.DataFrame(lines, columns=COLUMNS)


@styled
def draw_rows(rows: pd.DataFrame, layer_idx: int = 0) -> Figure:
    """A row a request, a column a step: whether its row of the block table was made anew, and why. The
    number is that of the tokens it held.

    rows: as `record_rows` gives them. A step that only admitted requests is an empty column.
    """
    shown = rows[rows["layer"] == layer_idx]
    requests = sorted(shown["request"].unique())
    fig, axes = figure(1.35 + 0.36 * len(requests))
    for line in shown.itertuples():
        x, y = line.step, requests.index(line.request)
        face = REASONS[line.reason][0]
        axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, facecolor=face, alpha=0.8, lw=0))
        axes.text(x, y, str(line.tokens), ha="center", va="center", fontsize=7.5, color=INK)
    axes.set_xlim(0.4, rows["step"].max() + 0.6)
    axes.set_ylim(len(requests) - 0.5, -0.5)
    axes.set_yticks(range(len(requests)), [f"request {request}" for request in requests])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("step (in a cell: tokens in the cache when the step began)")
    axes.set_title(f"Rows of layer {layer_idx}'s block table: kept, or made anew")
    seen = [reason for reason in REASONS if reason in set(shown["reason"])]
    keys = [Patch(color=REASONS[r][0], alpha=0.8, label=REASONS[r][1]) for r in seen]
    fig.legend(handles=keys, loc="outside lower center", ncols=2)
    return fig


@styled
def draw_step_times(series: Mapping[str, Sequence[float]], mark_every: int) -> Figure:
    """A line a rung, by name: milliseconds of each decode step. Every `mark_every` steps has a mark below."""
    fig, axes = figure(3.2)
    for i, (name, times) in enumerate(series.items()):
        axes.plot(range(1, len(times) + 1), times, color=colour(i), lw=1, label=name)
    num_steps = max(map(len, series.values()))
    marks = range(1 + mark_every, num_steps + 1, mark_every)
    axes.plot(marks, [0] * len(marks), "^", color=INK, transform=axes.get_xaxis_transform(), clip_on=False)
    axes.set_xlim(0, num_steps + 1)
    axes.grid(axis="y")
    axes.set_xlabel(f"decode step (▲: the step after a boundary, every {mark_every})")
    axes.set_ylabel("milliseconds (not from 0)")
    axes.set_title("Every decode step of a run")
    axes.legend(loc="upper right", ncols=len(series))
    return fig
