"""Lesson 10: tokens that are read one step behind."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.overlap import NextTokens
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.in_flight import flights_proven
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.schedule import prove
from labkit.watch import PlantedError, planted_failure

# Every other request may end before its limit, with a step in flight.
ENDING = tuple(replace(params, stop_on_eos=True) for params in MIXED[:2]) + MIXED[2:]


@contextmanager
def small_engine(
    build: Build, lengths: Sequence[int]
) -> Iterator[tuple[InferenceEngine, Callable[[], None]]]:
    """An engine that has just made the first token of requests with so many to make, and a call that steps
    it; inside the block, what is launched and read is proven."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(4, 16, prefix_cache=False))

    def step() -> None:
        engine.step()
        prove(engine, invariants)

    with flights_proven(engine) as invariants:
        for length in lengths:
            engine.add_request((1, 2, 3), SamplingParams(length, stop_on_eos=False))
        step()
        yield engine, step


@torch.inference_mode()  # as in an engine's step: a graph of the reader's copies into its tensors
def tokens_are_returned(build: Build) -> None:
    """Raise BrokenContract if `next_tokens` returns something that the engine cannot hand out."""
    with small_engine(build, (9, 9)) as (engine, _):
        made = engine.readback.next_tokens(engine.scheduler.running)
    if not isinstance(made, NextTokens):
        raise BrokenContract(
            f"next_tokens returns the tokens that are handed out: it returned {shown(made)}, expected what "
            "`self.hand_out` returns, a NextTokens."
        )


def a_newcomer_has_one_token_to_make(build: Build) -> None:
    """Raise BrokenContract if a request that has joined after a launch waits for others."""
    with small_engine(build, (14,)) as (engine, step):
        for _ in range(3):
            step()
        engine.add_request((7, 8), SamplingParams(2, stop_on_eos=False))
        while engine.has_work:
            step()


def a_launch_fails_behind_a_step(build: Build) -> None:
    """Raise BrokenContract if a step is lost whose successor could not be launched."""
    with small_engine(build, (9, 9)) as (engine, step):
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
    trials=(tokens_are_returned, a_newcomer_has_one_token_to_make, a_launch_fails_behind_a_step),
)
