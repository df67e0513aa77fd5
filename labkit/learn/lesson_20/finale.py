"""Lesson 20: the staircase, and one load on two engines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from labkit.bench import Request, Workload, host_engine, in_turn, time_host_steps
from labkit.engine import CacheConfig, SamplingParams, SchedulerConfig
from labkit.engine.parts import NO_PARTS, Part
from labkit.ladder import FINISHED, LADDER, Rung
from labkit.learn.assembly import Assembly
from labkit.learn.lesson_14.counts import behind_system, questions
from labkit.model import LanguageModel
from labkit.results import Comparison, speedup
from labkit.results.runs import Run

# --- the reader's engine serves, beside the one that the ladder began with -----------------------------

FIRST, LAST = LADDER["00"], FINISHED


@dataclass(frozen=True)
class Finale:
    """Runs of one load on the first rung and on the reader's last one, made in turn."""

    first: Sequence[Run]
    yours: Sequence[Run]
    parts: Sequence[str]  # of the reader's in their engine, each by its option and lesson

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
    """Serve the load on both engines, there and back again in each round, a fresh engine for each run."""
    # A toy graph repeats its step an operator at a time.
    if torch.device(load.device).type == "cpu":
        mine = mine.without("launch")

    def run(rung: Rung, parts: Mapping[str, Part]) -> Run:
        return load.run(load.make_engine(rung.options, parts))

    measures = [partial(run, FIRST, NO_PARTS), partial(run, LAST, mine.parts_on(LAST.number))]
    first, yours = in_turn(measures, rounds)
    kept = mine.kept_on(LAST.number)
    return Finale(first, yours, [f"{option} ({part.lesson})" for option, part in kept.items()])


# --- host time of a step on every rung, the package's engine and the reader's in turn ------------------

# With the model taken out there is nothing to launch, no layer and no prompt: these parts have nothing to do.
WITHOUT_MODEL = ("launch", "layer_kernels", "latency", "batching")


@dataclass(frozen=True)
class Staircase:
    """Seconds of a step by rung, the fastest of each run, because other work of the machine only adds to it,
    and adds more to a long step; the runs of all engines were made in turn."""

    batch_size: int
    package: Mapping[str, Sequence[float]]
    yours: Mapping[str, Sequence[float]]  # of rungs with a part of the reader's that this clock can see

    @property
    def gain(self) -> float:
        """How many times the first rung's time the last one's is."""
        first, *_, last = self.package.values()
        return speedup(first, last)


def timed_parts(mine: Assembly, number: str, device: torch.device) -> dict[str, Part]:
    """The reader's parts on a rung that the measured step has."""
    # Without a GPU a kernel of the reader's runs in Triton's interpreter, whose time says nothing.
    unseen = WITHOUT_MODEL if device.type == "cuda" else (*WITHOUT_MODEL, "kv_write")
    return mine.without(*unseen).parts_on(number)


def fastest_step(
    number: str, parts: Mapping[str, Part], device: torch.device | str, batch_size: int = 64
) -> float:
    """Seconds of the fastest step of a fresh engine of a rung with these parts, its model taken out."""
    engine = host_engine(LADDER[number].options, batch_size, device, parts)
    return min(time_host_steps(engine, 12).step_seconds)


def measure_staircase(
    mine: Assembly, device: torch.device, batch_size: int = 64, rounds: int = 4
) -> Staircase:
    """Time all rungs that make the same tokens, there and back again in each round after one to warm up: the
    package's, and the reader's where there is one."""
    package: dict[str, dict[str, Part]] = {number: {} for number, rung in LADDER.items() if rung.is_exact}
    yours = {number: parts for number in package if (parts := timed_parts(mine, number, device))}

    engines = (*package.items(), *yours.items())
    measures = [partial(fastest_step, number, parts, device, batch_size) for number, parts in engines]
    runs = in_turn(measures, rounds, warm_up=1)
    first, rest = runs[: len(package)], runs[len(package) :]
    return Staircase(batch_size, dict(zip(package, first, strict=True)), dict(zip(yours, rest, strict=True)))
