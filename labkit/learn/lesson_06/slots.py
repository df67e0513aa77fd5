"""Lesson 06: the slots of a running engine, to be read."""

import pandas as pd

from labkit.engine import InferenceEngine


def slots_table(engine: InferenceEngine, layer_idx: int = 0) -> pd.DataFrame:
    """A row per slot: what the device holds of it in layer `layer_idx`, and what the host knows of its
    request."""
    slots = engine.decode_step.slots
    of_slot = {slots.slot_of.get(s): (request, s) for request, s in engine.scheduler.running.items()}
    rows = {}
    for slot in range(slots.padding_slot + 1):
        rows[slot] = {
            "request": "none: for padding" if slot == slots.padding_slot else "",
            "block table": str(slots.block_tables[layer_idx, slot, :4].tolist())[:-1] + ", ...]",
            "context_lens": int(slots.context_lens[slot]),
            "last_token_ids": int(slots.last_token_ids[slot]),
            "host: tokens, last token": "",
        }
        if slot in of_slot:
            request, session = of_slot[slot]
            rows[slot]["request"] = str(request.request_id)
            state = f"{session.num_tokens}, {request.output_token_ids[-1]}"
            rows[slot]["host: tokens, last token"] = state
    return pd.DataFrame(rows).T.rename_axis("slot")
