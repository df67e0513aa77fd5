"""Lesson 20: three patients."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from labkit.bench import cost_card, in_turn, transformers_tokens
from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams, StepOutput
from labkit.engine.parts import Part
from labkit.engine.request import Request
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.slots import DeviceSlots
from labkit.errors import BrokenEngineError
from labkit.kvcache import CachedBlockTables, KVBlockManager, OneTableBlockManager
from labkit.kvcache.block_tables import RowHolder
from labkit.ladder import LADDER, Rung
from labkit.learn.lesson_20.finale import fastest_step
from labkit.model import LanguageModel
from labkit.results import Comparison
from labkit.watch import PlantedError, planted_failure, steady_prompts

# --- three engines with a fault each -------------------------------------------------------------------

PROMPTS = ("To be, or not", "ROMEO:\nGood night", "O gentle Romeo, if thou")
NUM_TOKENS = 24  # of each text


class Patient(NamedTuple):
    """An engine of a rung, or so it says: one of its parts breaks a contract."""

    rung: Rung
    parts: Mapping[str, Part]

    def engine(
        self, model: LanguageModel, block_size: int = 64, prefix_cache: bool = False
    ) -> InferenceEngine:
        """The patient in float32, with this cache; on a CPU, so that symptoms are the same everywhere."""
        cache = CacheConfig(block_size=block_size, prefix_cache=prefix_cache)
        return InferenceEngine(
            model, self.rung.options, device="cpu", dtype=torch.float32, parts=self.parts, cache=cache
        )


# --- instruments ------------------------------------------------------------------------------------------


def visit(
    name: str, model: LanguageModel, share: bool = False, fail: bool = False, block_size: int = 64
) -> str:
    """Have a patient make three texts; say how many are transformers', and whether its blocks are accounted
    for after each step. share: all prompts are the same one, and the prefix cache is on. fail: every third
    step fails on its way, and is made again."""
    prompts = [model.tokenizer.encode(prompt) for prompt in (PROMPTS[1:2] * 3 if share else PROMPTS)]
    engine = PATIENTS[name].engine(model, block_size, prefix_cache=share)
    params = SamplingParams(NUM_TOKENS, stop_on_eos=False)
    texts: dict[int, list[int]] = {engine.add_request(prompt, params): [] for prompt in prompts}
    said, num_steps = "every block is accounted for", 0
    try:
        while engine.has_work:
            num_steps += 1
            outputs = _failing_step(engine) if fail and num_steps % 3 == 0 else engine.step()
            for request_id, token_id, _ in outputs:
                texts[request_id].append(token_id)
            engine.check_integrity()
    except AssertionError as error:
        said = f"check_integrity: {error}"
    except BrokenEngineError:
        said = (
            f"but only up to step {num_steps}, which could not be undone: it refuses every call "
            "(BrokenEngineError)"
        )
    expected = _right_texts(model, tuple(map(tuple, prompts)))
    pairs = zip(texts.values(), expected, strict=True)
    num_right = sum(tuple(made) == right[: len(made)] for made, right in pairs)  # as far as it got
    return f"{name}: {num_right} of {len(prompts)} texts match transformers; {said}"


@cache
def _right_texts(model: LanguageModel, prompts: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    return transformers_tokens(model.to("cpu", torch.float32), prompts, NUM_TOKENS)


def _failing_step(engine: InferenceEngine) -> Sequence[StepOutput]:
    step = engine.decode_step
    if isinstance(step, ResidentDecodeStep):
        planted = planted_failure(step.pinned_tokens, "start_copy")
    else:
        planted = planted_failure(engine.kv_manager.kv_write, "write")
    with suppress(PlantedError), planted:
        return engine.step()
    return ()


def cards(model: LanguageModel) -> pd.DataFrame:
    """The host's cost cards of a steady step: of each patient, behind a healthy engine of its rung."""
    columns = {}
    for name, patient in PATIENTS.items():
        healthy = Patient(patient.rung, {})
        for title, engine in ((f"rung {patient.rung.number}", healthy.engine), (name, patient.engine)):
            columns[title] = cost_card(engine(model), steady_prompts(8, (20, 23))).column()
    table = pd.DataFrame(columns)
    return table[[not row.startswith("GPU") for row in table.index]]  # recorded, of the healthy


def host_times(rounds: int = 4) -> dict[str, Comparison]:
    """The host time of a step of each patient, compared with a healthy engine's of its rung; the model is
    taken out, the runs are made in turn, and the fastest step of each counts."""
    found = {}
    for name, patient in PATIENTS.items():
        number = patient.rung.number
        measures = [partial(fastest_step, number, parts, "cpu") for parts in ({}, patient.parts)]
        healthy, sick = (tuple(runs) for runs in in_turn(measures, rounds))
        found[name] = Comparison(f"rung {number}", name, healthy, sick, {}, {})
    return found


# --- faults: do not read on before your diagnosis ---------------------------------------------------------


class _TablesA(CachedBlockTables):
    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._rows: dict[tuple[RowHolder, int], tuple[int, Tensor]] = {}

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[RowHolder]) -> None:
        for layer_idx in range(self.kv_manager.num_layers):
            offset = self.kv_manager.layer_offset(layer_idx)
            rows = [self._row(session, layer_idx, offset) for session in sessions]
            torch.stack(rows, out=block_tables_cpu[layer_idx])

    def _row(self, session: RowHolder, layer_idx: int, offset: int) -> Tensor:
        num_blocks = len(session.block_ids_per_layer[layer_idx])
        known, row = self._rows.get((session, layer_idx), (0, None))
        if row is None or known != num_blocks:  # a copy of the last block goes unseen
            row = session.get_paged_block_table_row_cpu(layer_idx=layer_idx, offset=offset).clone()
            self._rows[session, layer_idx] = num_blocks, row
        return row


class _ManagerB(OneTableBlockManager):
    def truncate(self, block_ids: list[int], num_tokens: int) -> None:
        num_tokens = min(num_tokens, self.num_tokens(block_ids))
        del block_ids[self.blocks_for(num_tokens) :]  # dropped, and never given back
        super().truncate(block_ids, num_tokens)


class _SlotsC(DeviceSlots):
    def update(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        self.forget(list(self.slot_of))  # so that everything is sent once more
        super().update(requests, sessions, changed)


PATIENTS = {
    "A": Patient(LADDER["05"], {"block_tables": _TablesA}),
    "B": Patient(LADDER["10"], {"layer_tables": _ManagerB}),
    "C": Patient(LADDER["07"], {"block_tables": _SlotsC}),
}
