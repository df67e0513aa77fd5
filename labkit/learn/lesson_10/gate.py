"""Lesson 10: tokens that are read one step behind."""

from contextlib import suppress
from dataclasses import replace

import torch

from labkit.engine import CacheConfig, SamplingParams
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.in_flight import flights_proven
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.schedule import prove
from labkit.watch import PlantedError, planted_failure

# Every other request may end before its limit, with a step in flight.
ENDING = tuple(replace(params, stop_on_eos=True) for params in MIXED[:2]) + MIXED[2:]


def in_steps(build: Build) -> None:
    """A request that joins while a step is in flight waits for nobody; no step is lost if a launch fails."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(4, 16, prefix_cache=False))
    with flights_proven(engine) as invariants:

        def step() -> None:
            engine.step()
            prove(engine, invariants)

        engine.add_request((1, 2, 3), SamplingParams(14, stop_on_eos=False))
        for _ in range(4):
            step()
        engine.add_request((7, 8), SamplingParams(2, stop_on_eos=False))
        while engine.has_work:
            step()
        engine.add_request((1, 2, 3), SamplingParams(9, stop_on_eos=False))
        step()
        second_launch = 0 if engine.readback.is_ahead else 1
        with (
            suppress(PlantedError),
            planted_failure(engine.decode_step.pinned_tokens, "start_copy", second_launch),
        ):
            step()
        if not engine.readback.is_ahead:
            raise BrokenContract(
                "a step stays in flight if the launch after it fails: step 1 was launched, the launch of "
                "step 2 failed, and is_ahead is False, expected True. The tokens of step 1 are lost. Keep a "
                "step in `self.in_flight` before you launch the next."
            )


GATE = Gate(
    ("readback",),
    LADDER["09"].options,
    watches=(flights_proven,),
    samplings=ENDING,
    trials=(in_steps,),
)
