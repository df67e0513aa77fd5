"""Lesson 06: slots on the device that follow what the host knows."""

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.parts import Part
from labkit.ladder import LADDER
from labkit.learn.gates import Gate, Report
from labkit.learn.gates.gate import Build, small_model
from labkit.learn.gates.resident import MIXED, SENT_ONCE, launches_proven, wrong_padding
from labkit.learn.gates.schedule import Invariant, telling
from labkit.learn.steps import STEPS, noted
from labkit.watch import PlantedError, planted_failure

EMPTY_PADDING = Invariant(
    "the padding slot stays empty",
    wrong_padding,
    "Nothing is ever sent to it: it is the slot after the last, and no request has it.",
)


def joins_one_by_one(build: Build, sent_once: Collection[str]) -> None:
    """A trial: in a full batch requests follow each other, and join in the steps in which another takes a
    block. Once no room can be made, so that who joins is forgotten and has no slot yet."""
    engine = build(
        small_model(),
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=16, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=2),
    )

    def join(num_tokens: int) -> None:
        engine.add_request((1, 2, 3), SamplingParams(num_tokens, stop_on_eos=False))

    story = (
        " (In this trial one slot has a request of 14 tokens. In the other, short ones follow each other.)"
    )
    with telling(lambda: story), launches_proven(engine, sent_once):
        for num_tokens in (2, 14, *[2] * 8):
            join(num_tokens)
            engine.step()
        with suppress(PlantedError), planted_failure(engine.kv_manager, "reserve_token_batch"):
            while engine.has_work:
                engine.step()
        while engine.has_work:
            engine.step()


def gate_of(sent_once: Collection[str]) -> Gate:
    """The gate of slots that send each of `sent_once`, names of SENT_ONCE, only when it has changed."""
    return Gate(
        ("block_tables",),
        LADDER["05"].options,
        (EMPTY_PADDING,),
        (partial(launches_proven, sent_once=sent_once),),
        MIXED,
        (partial(joins_one_by_one, sent_once=sent_once),),
    )


GATE = gate_of(SENT_ONCE)
STEP_GATES = {1: gate_of(()), 2: gate_of(("block_tables",))}  # of the build steps before the last


def check_step(number: int, build: Callable[..., InferenceEngine], part: Part) -> Report:
    """Prove the slots of build step `number`, which may send more than they must. build: `here.build`."""
    report = STEP_GATES[number].check(
        lambda model, **settings: build(model=model, block_tables=part, **settings)
    )
    return noted(report, "06", STEPS["06"][number - 1], part)
