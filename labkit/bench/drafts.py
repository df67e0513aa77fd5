"""Requests decoded in turn without drafts and with them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from tqdm import tqdm

from labkit.bench.comparison import in_turn
from labkit.bench.flags import MODEL, ByDevice, ModelFlags, flag, rounds_flag
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.ladder import FINISHED
from labkit.model import LanguageModel, load_model
from labkit.options import EngineOptions
from labkit.paths import ROOT
from labkit.results.comparison import Comparison, DialedRun, DraftedTask, together

TASKS = ROOT / "data" / "grounded_tasks.json"
SIDES = ("without drafts", "with drafts")
NGRAMS = replace(FINISHED.options, speculation="ngrams")


class Answer(NamedTuple):
    """The first request's tokens, the seconds of all decode steps, and what was drafted in them."""

    token_ids: tuple[int, ...]
    seconds: float
    steps: int
    drafted: int
    accepted: int


@dataclass
class CompareDrafts(ModelFlags):
    """Decode requests in turn without drafts and with them, task by task.

    The tasks are those of data/grounded_tasks.json: texts to summarize and to edit, code to go on with, and
    questions whose answers no prompt foretells. A model with random weights says the same again and again, so
    it shows nothing.
    """

    kind = "drafts"

    model: str = flag("smollm2-135m", "the command measures this chat model", MODEL)
    rounds: int = rounds_flag(2)
    max_new_tokens: int = flag(ByDevice(256, 48), "an answer has at most this many tokens")

    def run(self) -> None:
        device, model = pick_device(self.device), load_model(self.model, seed=self.seed)
        samples: list[DraftedTask] = []
        with self.until_interrupted(samples):
            for task in tqdm(json.loads(TASKS.read_text(encoding="utf-8")), unit=" tasks"):
                params = SamplingParams(self.max_new_tokens)
                samples.append(measured(model, device, task, params, self.rounds))
        print(table_of(samples).to_string())
        for name, tasks in ("grounded", ("summarize", "edit", "code")), ("free", ("free",)):
            if of_these := [sample for sample in samples if sample.task in tasks]:
                speedup, interval = together(of_these)
                print(f"{name}: x{speedup:.2f} {interval}")
        self.record_if_asked(samples)


def measured(
    model: LanguageModel, device: torch.device, task: dict[str, str], params: SamplingParams, rounds: int
) -> DraftedTask:
    """A task's request, decoded in turn on both sides."""
    if "text" in task:
        prompt = model.tokenizer.encode(task["text"])
    else:
        prompt = model.chat_prompt([{"role": "user", "content": task["user"]}])
    longest = len(prompt) + params.max_new_tokens
    engines = [engine_for(model, device, longest, options) for options in (FINISHED.options, NGRAMS)]
    measures = [partial(answer, engine, [prompt], params) for engine in engines]
    before, after = in_turn(measures, rounds)
    assert {each.token_ids for each in (*before, *after)} == {before[0].token_ids}, "drafts change no token"
    times = (tuple(each.seconds for each in side) for side in (before, after))
    last = after[-1]
    return DraftedTask(
        task["kind"],
        task["name"],
        len(prompt),
        len(last.token_ids),
        last.steps,
        last.drafted,
        last.accepted,
        Comparison(*SIDES, *times, {}, {}),
    )


def engine_for(
    model: LanguageModel, device: torch.device, longest: int, options: EngineOptions
) -> InferenceEngine:
    """An engine for one request of so many tokens, which has run once."""
    # A prompt that comes again is found in the prefix cache: it is decoding that is measured.
    cache = CacheConfig(max_positions=longest, max_blocks_per_layer=2 * -(-longest // 64))
    one = SchedulerConfig(max_batch_size=1)
    engine = InferenceEngine(model, options, device=device, cache=cache, scheduler=one)
    engine.generate([[1, 2, 3, 1, 2]], SamplingParams(4, stop_on_eos=False))
    return engine


def answer(engine: InferenceEngine, prompts: list[list[int]], params: SamplingParams) -> Answer:
    before = engine.stats().counters
    completions = engine.generate(prompts, params)
    after = engine.stats().counters
    return Answer(
        completions[0].token_ids,
        after.decode_seconds - before.decode_seconds,
        after.decode_steps - before.decode_steps,
        after.drafted_tokens - before.drafted_tokens,
        after.accepted_tokens - before.accepted_tokens,
    )


def table_of(samples: Sequence[DraftedTask] | Sequence[DialedRun]) -> pd.DataFrame:
    """A row per task, or per number of requests and chance: what drafts are worth there."""
    rows: list[dict[str, Any]] = []
    for sample in samples:
        if isinstance(sample, DraftedTask):
            rows.append({"task": f"{sample.task}: {sample.name}", "new tokens": sample.new_tokens})
        else:
            rows.append({"requests": sample.requests, "chance": sample.chance})
        rows[-1] |= {
            "tokens a step": round(sample.tokens_a_step, 2),
            "drafted": sample.drafted,
            "accepted": sample.accepted,
            "speedup": f"x{sample.comparison.speedup:.2f}",
            "interval": str(sample.comparison.interval),
        }
    return pd.DataFrame(rows).set_index(next(iter(rows[0])))
