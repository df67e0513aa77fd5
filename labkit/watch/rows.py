"""Which rows of the block table were made anew, step by step, and why."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.kvcache import CachedBlockTables
from labkit.watch.replaced import replaced

MARK = -1  # no block has this number
COLUMNS = ("step", "request", "layer", "tokens", "blocks", "reason")


def reason_of(kept: bool, before: Sequence[int], after: Sequence[int]) -> str:
    """Why a row was kept, or made anew, while its blocks became others: "kept", "stale" (kept although they
    changed), "forgotten" (made anew although they did not), "boundary", "copy_on_write" or "changed".
    """
    if kept:
        return "kept" if before == after else "stale"
    if before == after:
        return "forgotten"
    if after[:-1] == before:
        return "boundary"
    if len(after) == len(before) and after[:-1] == before[:-1]:
        return "copy_on_write"
    return "changed"


def record_rows(engine: InferenceEngine, num_steps: int) -> pd.DataFrame:
    """Run `num_steps` steps; a line per row that a decode step asked for, for every request and layer.

    `tokens` and `blocks` are what the request held when the step began; `reason` is "first" or what
    `reason_of` says, told from outside: before a row is asked for again, the last entry of the earlier one
    gets a mark, which a row made anew has lost. Tokens made are not kept. A row that was made before the
    recording began counts as first when it is seen first. Raises ValueError if the engine's sessions keep no
    rows.
    """
    step = engine.decode_step
    tables = step.block_tables if isinstance(step, DecodeStep) else None
    if not isinstance(tables, CachedBlockTables):
        raise ValueError(f"an engine with block_tables={engine.options.block_tables!r} keeps no rows")
    seen: dict[tuple[InferenceSession, int], tuple[Tensor, list[int]]] = {}  # by session and layer
    lines = []
    steps_before = engine.stats().counters.steps

    def watched(session: InferenceSession, step: int, request_id: int) -> Any:
        """What stands for a session in `fill`, and tells of each row that it is asked for."""

        def row_of(*, layer_idx: int, offset: int) -> Tensor:
            key, block_ids = (session, layer_idx), list(session.block_ids_per_layer[layer_idx])
            earlier, blocks_then = seen.get(key, (None, []))
            if earlier is not None:
                last_entry = earlier[-1].item()
                earlier[-1:].fill_(MARK)
            row = session.get_paged_block_table_row_cpu(layer_idx=layer_idx, offset=offset)
            reason = "first"
            if earlier is not None:
                kept = row[-1].item() == MARK
                if kept:
                    row[-1:].fill_(last_entry)
                reason = reason_of(kept, blocks_then, block_ids)
            seen[key] = row, block_ids
            lines.append((step, request_id, layer_idx, session.num_tokens, len(block_ids), reason))
            return row

        return SimpleNamespace(get_paged_block_table_row_cpu=row_of)

    def filling(inner: Callable) -> Callable:
        def fill(block_tables_cpu: Tensor, sessions: Sequence[InferenceSession]) -> None:
            step = engine.stats().counters.steps - steps_before
            ids = {session: r.request_id for r, session in engine.scheduler.running.items()}
            inner(block_tables_cpu, [watched(session, step, ids[session]) for session in sessions])

        return fill

    with replaced(tables, "fill", filling):
        for _ in range(num_steps):
            engine.step()
    return pd.DataFrame(lines, columns=COLUMNS)
