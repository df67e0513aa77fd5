"""drafts: requests decoded in turn without drafts and with them, task by task.

The tasks are those of data/grounded_tasks.json: texts to summarize and to edit, code to go on with, and
questions whose answers no prompt foretells. A model with random weights says the same again and again, so it
shows nothing. With --acceptance, drafts are right with a chance that is set, and any model will do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from labkit.bench.commands.arguments import COUNT, ModelFlags, list_of, rounds_flag
from labkit.bench.commands.flags import ByDevice, Kind, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.comparison import in_turn
from labkit.bench.limit import measure_bandwidth
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.engine.parts import NO_PARTS, Part
from labkit.engine.step.verify import MOST_DRAFTS, VerifyStep, drafts_each
from labkit.flag_types import real_number
from labkit.ladder import FINISHED
from labkit.model import LanguageModel, load_model
from labkit.options import EngineOptions
from labkit.paths import ROOT
from labkit.results.comparison import Comparison
from labkit.results.drafts import DialedRun, DraftedTask, together

NUM_DRAWS = 4096  # rows of random numbers, which come around again
TASKS = ROOT / "data" / "grounded_tasks.json"
SIDES = ("without drafts", "with drafts")
NGRAMS = replace(FINISHED.options, speculation="ngrams")
DIALED_BATCHES, DIALED_PROMPT = (1, 8, 64), 160


@dataclass
class Settings(ModelFlags):
    model: str = flag("smollm2-135m", "the command measures this chat model", Kind(str, "MODEL"))
    rounds: int = rounds_flag(2)
    max_new_tokens: int = flag(ByDevice(256, 48), "an answer has at most this many tokens", COUNT)
    acceptance: tuple[float, ...] | None = flag(
        None,
        "instead of the tasks, drafts that are right with each of these chances, one after another "
        "(default: the tasks run)",
        Kind(list_of(real_number(0, 1)), "P,P,..."),
    )


class Answer(NamedTuple):
    """The first request's tokens, the seconds of all decode steps, and what was drafted in them."""

    token_ids: tuple[int, ...]
    seconds: float
    steps: int
    drafted: int
    accepted: int


def run(args: Settings) -> None:
    device, model = pick_device(args.device), load_model(args.model, seed=args.seed)
    bandwidth, kind = measure_bandwidth(device), "drafts" if args.acceptance is None else "drafts_dial"
    samples: list[Any] = []
    with args.until_interrupted(samples):
        if args.acceptance is None:
            for task in tqdm(json.loads(TASKS.read_text(encoding="utf-8")), unit=" tasks"):
                samples.append(measured(model, device, task, args))
        else:
            for batch_size in DIALED_BATCHES:
                dial(model, device, batch_size, args, samples)
    print(table_of(samples).to_string())
    for name, tasks in ("grounded", ("summarize", "edit", "code")), ("free", ("free",)):
        if of_these := [sample for sample in samples if getattr(sample, "task", None) in tasks]:
            speedup, interval = together(of_these)
            print(f"{name}: x{speedup:.2f} {interval}")
    record_if_asked(args, kind, device, samples, bandwidth)


def measured(model: LanguageModel, device: torch.device, task: dict[str, str], args: Settings) -> DraftedTask:
    """A task's request, decoded in turn on both sides."""
    if "text" in task:
        prompt = model.tokenizer.encode(task["text"])
    else:
        prompt = model.chat_prompt([{"role": "user", "content": task["user"]}])
    longest, params = len(prompt) + args.max_new_tokens, SamplingParams(args.max_new_tokens)
    engines = [engine_for(model, device, 1, longest, options) for options in (FINISHED.options, NGRAMS)]
    measures = [partial(answer, engine, [prompt], params) for engine in engines]
    before, after = in_turn(measures, args.rounds)
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


def dial(
    model: LanguageModel, device: torch.device, batch_size: int, args: Settings, samples: list[DialedRun]
) -> None:
    """Add a sample for each chance: requests whose prompts have nothing in common, decoded on both sides."""
    numbers = torch.Generator().manual_seed(args.seed)
    shape = (batch_size, DIALED_PROMPT)
    prompts = torch.randint(model.config.vocab_size, shape, generator=numbers).tolist()
    chance = torch.zeros(1, device=device)
    parts = {"speculation": partial(DialedStep, chance=chance)}
    longest = DIALED_PROMPT + args.max_new_tokens
    params = SamplingParams(args.max_new_tokens, stop_on_eos=False)
    engines = (
        engine_for(model, device, batch_size, longest, FINISHED.options),
        engine_for(model, device, batch_size, longest, NGRAMS, parts),
    )
    engines[1].readback.repeats = lambda request: True  # whatever the text says
    measures = [partial(answer, engine, prompts, params) for engine in engines]
    for each in args.acceptance if drafts_each(batch_size) else (0.0,):
        chance.fill_(each)
        before, after = in_turn(measures, args.rounds, warm_up=1)
        times = (tuple(run.seconds for run in side) for side in (before, after))
        samples.append(
            DialedRun(
                batch_size,
                each,
                args.max_new_tokens,
                sum(run.steps for run in after),
                sum(run.drafted for run in after),
                sum(run.accepted for run in after),
                Comparison(*SIDES, *times, {}, {}),
            )
        )


def engine_for(
    model: LanguageModel,
    device: torch.device,
    batch_size: int,
    longest: int,
    options: EngineOptions,
    parts: Mapping[str, Part] = NO_PARTS,
) -> InferenceEngine:
    """An engine for so many requests of so many tokens, which has run once."""
    # A prompt that comes again is found in the prefix cache: it is decoding that is measured.
    cache = CacheConfig(max_positions=longest, max_blocks_per_layer=2 * batch_size * -(-longest // 64))
    scheduler = SchedulerConfig(max_batch_size=batch_size)
    engine = InferenceEngine(model, options, device=device, parts=parts, cache=cache, scheduler=scheduler)
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


class DialedStep(VerifyStep):
    """A step that verifies as many drafts as there may be, and takes each for right with a chance.

    It does all the work of a `VerifyStep`, and what is found in the text is not used. The text is none that
    the model would write: it is there for its time. chance: [1], which may change between steps.
    """

    def __init__(self, *args: Any, chance: Tensor) -> None:
        super().__init__(*args)
        self._chance, self._find = chance, self.find_drafts
        self.find_drafts = self._found_or_not
        device, num_rows = self.limits.device, len(self.limits)
        numbers = torch.Generator().manual_seed(17)
        self._draws = torch.rand(NUM_DRAWS, num_rows, MOST_DRAFTS, generator=numbers).to(device)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)

    def _found_or_not(self, *args: Any) -> Tensor:
        found, (_, context_lens, slot_mapping, limits, num_drafts) = self._find(*args), args
        limits = limits.masked_fill(context_lens[slot_mapping] < 0, 0)  # of padding slots
        may_be = torch.arange(num_drafts, device=found.device) < limits[:, None]
        return torch.where(may_be, found.clamp(min=0), found)

    def accepted(self, made: Tensor, drafts: Tensor) -> Tensor:
        """How many drafts [B] are taken for right, up to the first that is not."""
        B, num_drafts = drafts.shape
        is_right = self._draws.index_select(0, self._turn % NUM_DRAWS)[0, :B, :num_drafts] < self._chance
        self._turn += 1
        return (is_right & (drafts >= 0)).long().cumprod(dim=1).sum(dim=1)
