"""Lesson 15: host time of a step on every rung, the package's engine and the reader's in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from labkit.bench import host_engine, in_turn, time_host_steps
from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.ladder import LADDER
from labkit.learn.assembly import Assembly
from labkit.results import Comparison

NUM_STEPS = 12  # of a run
# With the model taken out there is nothing to launch, no layer and no prompt: these parts have nothing to do.
WITHOUT_MODEL = ("launch", "layer_kernels", "latency", "batching")


@dataclass(frozen=True)
class Staircase:
    """Seconds of a step by rung, the fastest of each run; the runs of all engines were made in turn. (The
    fastest, because other work of the machine only adds to it, and adds more to a long step.)

    yours: of the rungs whose engine has a part of the reader's that this clock can see.
    """

    batch_size: int
    package: Mapping[str, Sequence[float]]
    yours: Mapping[str, Sequence[float]]

    @property
    def gain(self) -> float:
        """How many times the first rung's time the last one's is."""
        first, *_, last = self.package
        runs = tuple(self.package[first]), tuple(self.package[last])
        return Comparison(first, last, *runs, {}, {}).speedup


def timed_parts(mine: Assembly, number: str, device: torch.device) -> dict[str, Part]:
    """The reader's parts on a rung that the measured step has.

    Without a GPU a kernel of the reader's runs in Triton's interpreter, whose time says nothing.
    """
    unseen = WITHOUT_MODEL if device.type == "cuda" else (*WITHOUT_MODEL, "kv_write")
    return mine.without(*unseen).parts_on(number)


def measure_staircase(
    mine: Assembly, device: torch.device, batch_size: int = 64, rounds: int = 4
) -> Staircase:
    """Time all rungs, there and back again in each round: the package's, and the reader's where there is one.

    A fresh engine for each run; one run of each is made before, to warm up.
    """
    package: dict[tuple[str, bool], dict] = {(number, False): {} for number in LADDER}
    yours = {(number, True): timed_parts(mine, number, device) for number in LADDER}
    engines = package | {name: parts for name, parts in yours.items() if parts}

    def timed(number: str, parts: dict[str, Part]) -> float:
        engine: InferenceEngine = host_engine(LADDER[number].options, batch_size, device, parts)
        return min(time_host_steps(engine, NUM_STEPS).step_seconds)

    measures = [lambda n=number, p=parts: timed(n, p) for (number, _), parts in engines.items()]
    for measure in measures:
        measure()
    seconds = dict(zip(engines, in_turn(measures, rounds), strict=True))
    return Staircase(
        batch_size,
        {number: runs for (number, is_mine), runs in seconds.items() if not is_mine},
        {number: runs for (number, is_mine), runs in seconds.items() if is_mine},
    )
