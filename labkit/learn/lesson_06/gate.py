"""Lesson 06: slots on the device that follow what the host knows."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.parts import Part
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Gate, Report
from labkit.learn.gates.gate import Build, small_model
from labkit.learn.gates.resident import MIXED, SENT_ONCE, launches_proven, wrong_padding
from labkit.learn.gates.schedule import Invariant, broken_behind

EMPTY_PADDING = Invariant(
    "the padding slot stays empty",
    wrong_padding,
    "Nothing is ever sent to it: it is the slot after the last, and no request has it.",
)


def copied_in_the_middle(build: Build, sent_once: Collection[str]) -> None:
    """A last block that is shared and copied when its request has long joined: the row must be sent then.

    In the engine's own schedules only the end of a prompt is shared, so that the copy falls on the join.
    """
    cache = CacheConfig(block_size=8, max_blocks_per_layer=16, prefix_cache=False)
    engine = build(small_model(), dtype=torch.float32, cache=cache)
    engine.add_request((1, 2, 3), SamplingParams(max_new_tokens=12, stop_on_eos=False))
    try:
        with launches_proven(engine, sent_once):
            for _ in range(4):
                engine.step()
            (session,) = engine.scheduler.running.values()
            fork = session.fork()
            engine.step()
            fork.release()
            while engine.has_work:
                engine.step()
    except Exception as error:
        if broken := broken_behind(error):
            raise BrokenContract(
                f"{broken} (In this: one request joins, with blocks of 8; 4 steps; its last block is shared "
                "and must be copied; steps to its end.)"
            ) from error
        raise


def gate_of(sent_once: Collection[str]) -> Gate:
    """The gate of slots that send each of `sent_once`, names of SENT_ONCE, only when it has changed."""
    return Gate(
        ("block_tables",),
        LADDER["05"].options,
        (EMPTY_PADDING,),
        (partial(launches_proven, sent_once=sent_once),),
        MIXED,
        (partial(copied_in_the_middle, sent_once=sent_once),),
    )


GATE = gate_of(SENT_ONCE)
STEP_GATES = {1: gate_of(()), 2: gate_of(("block_tables",))}  # of the build steps before the last


def check_step(number: int, build: Callable[..., InferenceEngine], part: Part) -> Report:
    """Prove the slots of build step `number`, which may send more than they must. build: `here.build`."""

    def with_part(model: object, **settings: Any) -> InferenceEngine:
        return build(model=model, block_tables=part, **settings)

    return STEP_GATES[number].check(with_part)
