"""Which rows of the block table were made anew, step by step, and why."""

from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.kvcache import CachedBlockTables
from labkit.watch.replaced import noting, replaced

COLUMNS = ("step", "request", "layer", "tokens", "blocks", "reason")


def reason_of(before: Sequence[int] | None, after: Sequence[int]) -> str:
    """Why a row was kept, or made anew, while its blocks became others: "first", "kept", "boundary" or
    "copy_on_write"."""
    if before is None:
        return "first"
    if before == after:
        return "kept"
    return "boundary" if len(after) > len(before) else "copy_on_write"


def record_rows(engine: InferenceEngine, num_steps: int) -> pd.DataFrame:
    """Run `num_steps` steps; a line per row that a decode step asked for, for every request and layer.

    `tokens` and `blocks` are what the request held when the step began; `reason` is what `reason_of` says of
    its blocks. Tokens made are not kept. A row that was made before the recording began counts as first when
    it is seen first. Raises ValueError if the engine's sessions keep no rows.
    """
    step = engine.decode_step
    tables = step.block_tables if isinstance(step, DecodeStep) else None
    if not isinstance(tables, CachedBlockTables):
        raise ValueError(f"an engine with block_tables={engine.options.block_tables!r} keeps no rows")
    seen: dict[tuple[int, int], list[int]] = {}  # by request and layer: its blocks
    lines = []
    steps_before = engine.stats().counters.steps

    def on_fill(_: Tensor, sessions: Sequence[InferenceSession]) -> None:
        step = engine.stats().counters.steps - steps_before
        ids = {session: r.request_id for r, session in engine.scheduler.running.items()}
        for session in sessions:
            for layer_idx, block_ids in enumerate(session.block_ids_per_layer):
                key = ids[session], layer_idx
                reason = reason_of(seen.get(key), block_ids)
                seen[key] = list(block_ids)
                lines.append((step, *key, session.num_tokens, len(block_ids), reason))

    with replaced(tables, "fill", noting(on_fill)):
        for _ in range(num_steps):
            engine.step()
    return pd.DataFrame(lines, columns=COLUMNS)
