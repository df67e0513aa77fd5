"""What the reader's part costs: the rung below, the reader's engine and the package's, in turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import pandas as pd

from labkit.bench import host_engine, in_turn, time_host_steps
from labkit.bench.host_time import LENGTHS
from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.ladder import Rung
from labkit.results import Comparison

BELOW, YOURS, PACKAGE = "the rung below", "yours", "the package's"
NUM_STEPS = 12  # of a run


@dataclass(frozen=True)
class Measured:
    """Host time of a decode step of `batch_size` requests, the model taken out, of three engines.

    seconds: by BELOW, YOURS and PACKAGE, the median step of each run; the runs were made in turn.
    """

    batch_size: int
    seconds: Mapping[str, Sequence[float]]

    def compared(self, name: str) -> Comparison:
        """How much faster than the rung below one of the other two is."""
        before, after = (tuple(self.seconds[side]) for side in (BELOW, name))
        return Comparison(BELOW, name, before, after, {}, {})

    def table(self) -> pd.DataFrame:
        """A row per engine: microseconds of a step, and the ratio to the rung below with its verdict."""
        rows = {
            name: {"host µs per step": round(1e6 * median(seconds)), "times as fast": "", "verdict": ""}
            for name, seconds in self.seconds.items()
        }
        for name in (YOURS, PACKAGE):
            compared = self.compared(name)
            rows[name]["times as fast"] = f"×{compared.speedup:.2f} {compared.interval}"
            rows[name]["verdict"] = compared.verdict
        return pd.DataFrame(rows).T


def measure_host(
    below: Rung,
    rung: Rung,
    parts: Mapping[str, Part],
    batch_size: int,
    device: object,
    rounds: int,
    lengths: Sequence[int] = LENGTHS,
) -> Measured:
    """Time the three engines in turn, there and back again in each round; each run has a fresh one.

    lengths: of the prompts, in turn; a single one makes all positions equal.
    """
    builds = three_engines(below, rung, parts, batch_size, device)
    measures = [lambda build=build: time_host_steps(build(), NUM_STEPS, lengths) for build in builds.values()]
    medians = [[median(run.step_seconds) for run in side] for side in in_turn(measures, rounds)]
    return Measured(batch_size, dict(zip(builds, medians, strict=True)))


def three_engines(
    below: Rung, rung: Rung, parts: Mapping[str, Part], batch_size: int, device: object
) -> dict[str, Callable[[], InferenceEngine]]:
    """What makes an engine of the rung below, the reader's and the package's, by name: a new one for each
    run, for where its memory lies can cost one a tenth of its time (data/host_clock_variants_cpu.json)."""
    return {
        BELOW: partial(host_engine, below.options, batch_size, device),
        YOURS: partial(host_engine, rung.options, batch_size, device, parts),
        PACKAGE: partial(host_engine, rung.options, batch_size, device),
    }
