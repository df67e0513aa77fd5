"""Lesson 15: the reader's engine serves, beside the one that the ladder began with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from labkit.bench import Request, Workload, in_turn
from labkit.engine import CacheConfig, SamplingParams, SchedulerConfig
from labkit.engine.parts import NO_PARTS, Part
from labkit.ladder import LADDER, Rung
from labkit.learn.assembly import Assembly
from labkit.learn.lesson_14.texts import behind_system, questions
from labkit.model import LanguageModel
from labkit.results import Comparison
from labkit.results.runs import Run

FIRST, *_, LAST = LADDER.values()


@dataclass(frozen=True)
class Finale:
    """Runs of one load on the first rung and on the reader's last one, made in turn.

    parts: the reader's in their engine, each by its option and lesson.
    """

    first: Sequence[Run]
    yours: Sequence[Run]
    parts: Sequence[str]

    @property
    def waits(self) -> dict[str, Comparison]:
        """Seconds in which both engines had made the first token of a request, and all tokens."""
        num_requests, num_tokens = len(self.yours[0].new_tokens), self.yours[0].tokens
        return {
            f"A request's first token, the median of {num_requests}": self._compared(
                lambda run: median(run.latency.ttft)
            ),
            f"All {num_tokens} tokens": self._compared(lambda run: run.seconds),
        }

    def _compared(self, seconds: Callable[[Run], float]) -> Comparison:
        runs = (tuple(map(seconds, side)) for side in (self.first, self.yours))
        return Comparison(f"rung {FIRST.number}", "yours", *runs, {}, {})

    def __repr__(self) -> str:
        rates = [f"{median(run.throughput for run in side):,.0f}" for side in (self.first, self.yours)]
        return f"tokens per second: rung {FIRST.number} {rates[0]}, yours {rates[1]}"


def guests(model: LanguageModel, device: torch.device, num_requests: int = 32) -> Workload:
    """Questions behind lesson 14's system prompt, all at once: every other one greedy, the rest drawn, with
    answers of 8 to 24 tokens."""
    requests = []
    for i, prompt in enumerate(behind_system(model.tokenizer, questions(num_requests))):
        draws = {"temperature": 0.8, "top_p": 0.95, "seed": i} if i % 2 else {}
        requests.append(Request(prompt, SamplingParams(8 + 7 * i % 17, stop_on_eos=False, **draws)))
    scheduler = SchedulerConfig(max_batch_size=16)
    return Workload(model, tuple(requests), device, scheduler, CacheConfig(max_blocks_per_layer=96))


def serve(mine: Assembly, load: Workload, rounds: int = 2) -> Finale:
    """Serve the load on both engines, there and back again in each round, a fresh engine for each run.

    Without a GPU the reader's `launch` stays out: a toy graph repeats its step an operator at a time.
    """
    if torch.device(load.device).type == "cpu":
        mine = mine.without("launch")

    def run(rung: Rung, parts: Mapping[str, Part]) -> Run:
        return load.run(load.make_engine(rung.options, parts))

    measures = [partial(run, FIRST, NO_PARTS), partial(run, LAST, mine.parts_on(LAST.number))]
    first, yours = in_turn(measures, rounds)
    kept = mine.kept_on(LAST.number)
    return Finale(first, yours, [f"{option} ({part.lesson})" for option, part in kept.items()])
