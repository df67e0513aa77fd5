"""Lesson 04: what a step's index tensors cost, counted here and recorded on a GPU."""

from collections.abc import Sequence
from contextlib import nullcontext

import pandas as pd

from labkit.bench.cost_cards import count_operators
from labkit.engine import InferenceEngine
from labkit.learn.gates.gate import raised
from labkit.results import CostCardRecord, counts_table
from labkit.watch import record_accesses, steady_decode, steady_prompts

PROMPTS = (8, (20, 23))  # requests, and the lengths of their prompts in turn


def index_tensors_of(engine: InferenceEngine) -> str:
    """How many index tensors a steady decode step of PROMPTS makes on this engine, as a sentence; also why
    they were not counted."""
    try:
        # A kernel that the gate has refused may store anywhere: nothing outside of its tensors is touched.
        guarded = record_accesses() if engine.device.type == "cpu" else nullcontext()
        with guarded, steady_decode(engine, steady_prompts(*PROMPTS)):
            _, count = count_operators(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"index tensors in a step: not counted, because the engine {raised(error)}"
    return f"index tensors in a step: {count}"


COUNTS = {  # counts of a cost card: their words in a table
    "aten_ops": "PyTorch operators",
    "index_tensors": "index tensors",
    "h2d_synchronizing": "synchronizing copies",
    "synchronizations": "waits for the GPU",
    "kernels": "kernels",
}


def recorded_counts(
    record: CostCardRecord, rungs: Sequence[str], model: str, lengths: Sequence[int], batch_size: int
) -> pd.DataFrame:
    """A table of recorded decode steps, a column per rung: the write taken, and COUNTS of what its index
    tensors cost."""
    found = record.cards(lengths, model, rungs)
    cards = {f"rung {rung}": card for (rung, size), card in found.items() if size == batch_size}
    writes = {n: next(path for path in card.append_paths if path != "in_place") for n, card in cards.items()}
    return pd.concat([pd.DataFrame(writes, index=["write"]), counts_table(cards, COUNTS)])
