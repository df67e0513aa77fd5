"""Lesson 17: what drafts are worth: on paper, in a step that one can read, on this machine, and recorded."""

import json
from bisect import bisect_left
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from labkit.bench.drafts import TASKS, table_of
from labkit.bench.drafts import measured as measured_task
from labkit.engine import SamplingParams
from labkit.engine.step.verify import MOST_DRAFTS, VerifyStep
from labkit.learn.lesson_17.engine import engine_with
from labkit.model import LanguageModel
from labkit.results.record import Record

Load = tuple[dict[str, str], SamplingParams]  # a task, and how it is answered

# --- on paper -------------------------------------------------------------------------------------------


def tokens_a_step(chance: float, num_drafts: int) -> float:
    """Tokens that a step with so many drafts brings on average, if each is right with this chance, given that
    those before it are: one, and one more for every draft that is kept."""
    return sum(chance**j for j in range(num_drafts + 1))


def break_even(price: float, num_drafts: int = MOST_DRAFTS) -> float:
    """The chance from which on drafts pay, if a step with them takes `price` times as long as one without."""
    return bisect_left(range(10**9), price, key=lambda n: tokens_a_step(1e-9 * n, num_drafts)) / 10**9


# --- a step that one can read ---------------------------------------------------------------------------


def read_steps(text: str, num_steps: int) -> pd.DataFrame:
    """The first steps with drafts in which the small model goes on with a text: a column per row of a step,
    with the token that is the row's input, the one that the model makes after it, and whether it is kept.
    What each step goes on with is printed."""
    engine, seen = engine_with(), []
    step: VerifyStep = engine.readback.verify_step.device_step
    accepted, decode = step.accepted, engine.model.tokenizer.decode

    def noted(made: Tensor, drafts: Tensor) -> Tensor:
        num_kept = accepted(made, drafts)
        so_far = step.texts[0, : step.slots.context_lens[0] + 1].tolist()
        seen.append((so_far, drafts[0].tolist(), made[0].tolist(), int(num_kept)))
        return num_kept

    step.accepted = noted
    engine.generate([text], SamplingParams(40, stop_on_eos=False))
    rows = {}
    with_drafts = [each for each in seen if each[1][0] >= 0]
    for number, (so_far, drafts, made, num_kept) in enumerate(with_drafts[:num_steps], 1):
        print(f"step {number} goes on with {decode(so_far)!r}")
        ids = [so_far[-1], *(draft for draft in drafts if draft >= 0)]
        rows[f"step {number}", "input"] = [repr(decode([i])) for i in ids]
        rows[f"step {number}", "made"] = [repr(decode([i])) for i in made[: len(ids)]]
        rows[f"step {number}", "kept"] = ["yes" if j <= num_kept else "" for j in range(len(ids))]
    table = pd.DataFrame(list(rows.values()), index=pd.MultiIndex.from_tuples(rows)).fillna("")
    return table.rename(columns="row {}".format)


# --- on this machine ------------------------------------------------------------------------------------


def row_times(model: LanguageModel, device: torch.device) -> pd.DataFrame:
    """Milliseconds of all products of the model for so many rows, on this machine: the shortest runs."""
    network, times = model.to(device, torch.float32).network, {}
    layers = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    for count in (1, 2, 4, 8):
        pairs = [(layer, torch.randn(count, layer.in_features, device=device)) for layer in layers]
        timer = Timer("for layer, x in pairs: layer(x)", globals={"pairs": pairs})
        with torch.inference_mode():
            times[count] = [round(1e3 * min(timer.timeit(1).median for _ in range(50)), 2)]
    return pd.DataFrame(times, index=["ms"]).rename_axis("rows", axis=1)


# A text each, and how the small model goes on.
SMALL: list[Load] = [
    (
        {"kind": "greedy", "name": "it soon says the same again", "text": "the king, the king, the"},
        SamplingParams(64, stop_on_eos=False),
    ),
    (
        {"kind": "drawn", "name": "little comes twice", "text": "To be, or not to be"},
        SamplingParams(64, temperature=1.0, seed=3, stop_on_eos=False),
    ),
]


def measured(model: LanguageModel, loads: Sequence[Load], device: torch.device) -> pd.DataFrame:
    """Each load, one request, decoded in turn without drafts and with them: a row per load."""
    return table_of([measured_task(model, device, task, params, 1) for task, params in loads])


def chat_loads(num_tokens: int = 32) -> list[Load]:
    """A notice to rewrite, and a letter to write, as a chat model is asked."""
    tasks = json.loads(TASKS.read_text(encoding="utf-8"))
    return [(task, SamplingParams(num_tokens)) for task in tasks if task["name"] in ("a notice", "a letter")]


# --- recorded -------------------------------------------------------------------------------------------


def dial_curves(record: Record) -> dict[str, dict[float, float]]:
    """For one request: the speed-up measured for each chance, and on paper, at the price that a step with
    drafts had where all were right."""
    runs = record.only(requests=1)
    best = max(runs, key=lambda run: run.chance)
    price = best.tokens_a_step / best.comparison.speedup
    return {
        "measured": {run.chance: run.comparison.speedup for run in runs},
        f"on paper, 7 drafts, a step of 8 rows at ×{price:.2f} of one": {
            run.chance: tokens_a_step(run.chance, MOST_DRAFTS) / price for run in runs
        },
    }
