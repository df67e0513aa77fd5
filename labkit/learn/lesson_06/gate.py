"""Lesson 06: slots on the device that follow what the host knows."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.parts import Part
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract, Unattempted
from labkit.learn.gates import Gate, Report
from labkit.learn.gates.gate import Build, raised, small_model
from labkit.learn.gates.resident import MIXED, SENT_ONCE, launches_proven, wrong_padding
from labkit.learn.gates.schedule import Invariant, broken_behind
from labkit.learn.steps import STEPS, noted
from labkit.watch import PlantedError, planted_failure

EMPTY_PADDING = Invariant(
    "the padding slot stays empty",
    wrong_padding,
    "Nothing is ever sent to it: it is the slot after the last, and no request has it.",
)


def engine_of(build: Build, *num_new: int) -> InferenceEngine:
    """An engine with two slots, and a request of 3 tokens, for each of `num_new` with so many new tokens."""
    cache = CacheConfig(block_size=8, max_blocks_per_layer=16, prefix_cache=False)
    two_slots = SchedulerConfig(max_batch_size=2)
    engine = build(small_model(), dtype=torch.float32, cache=cache, scheduler=two_slots)
    for number, num_tokens in enumerate(num_new):
        engine.add_request((number, 2, 3), SamplingParams(max_new_tokens=num_tokens, stop_on_eos=False))
    return engine


@contextmanager
def told(story: str) -> Iterator[None]:
    """A context in which a broken contract, or another error, is told with the moves that led there."""
    try:
        yield
    except Unattempted:
        raise
    except Exception as error:
        broken = broken_behind(error) or f"every step can be made: the engine {raised(error)}."
        raise BrokenContract(f"{broken} (In this: {story}.)") from error


def copied_in_the_middle(build: Build, sent_once: Collection[str]) -> None:
    """A last block that is shared and copied when its request has long joined: the row must be sent then.

    In the engine's own schedules only the end of a prompt is shared, so that the copy falls on the join.
    """
    engine = engine_of(build, 12)
    story = (
        "one request joins, with blocks of 8; 4 steps; its last block is shared and must be copied; steps to "
        "its end"
    )
    with told(story), launches_proven(engine, sent_once):
        for _ in range(4):
            engine.step()
        (session,) = engine.scheduler.running.values()
        fork = session.fork()
        engine.step()
        fork.release()
        while engine.has_work:
            engine.step()


def taken_over(build: Build, sent_once: Collection[str]) -> None:
    """Requests that take the place of others in a full batch: there is a slot for one only if that of the
    other is free by then, and no turn that slots take may come to one whose request stays. A schedule's batch
    is hardly ever full."""
    engine = engine_of(build, 4, 14, 4, 4)
    story = (
        "two requests join, which takes both slots; 3 steps; one of them ends and a third joins, and after "
        "its end a fourth"
    )
    with told(story), launches_proven(engine, sent_once):
        for _ in range(3):
            engine.step()
        while engine.has_work:
            engine.step()


def joins_at_a_boundary(build: Build, sent_once: Collection[str]) -> None:
    """A request that joins in the step in which another takes a block: the rows of both must be sent. A
    schedule's requests seldom meet so."""
    story = "a request joins, with blocks of 8; {} steps; another joins; steps to their end"
    for num_steps in range(1, 9):  # in one of them the first request's block has just become full
        engine = engine_of(build, 12)
        with told(story.format(num_steps)), launches_proven(engine, sent_once):
            for _ in range(num_steps):
                engine.step()
            engine.add_request((1, 2, 3), SamplingParams(max_new_tokens=2, stop_on_eos=False))
            while engine.has_work:
                engine.step()


def fails_before_the_update(build: Build, sent_once: Collection[str]) -> None:
    """A step that fails while room is made: who has just joined has no slot yet, and is forgotten, too."""
    engine = engine_of(build, 9, 9)
    story = "two requests join; no room can be made for their first step; steps to their end"
    with told(story), launches_proven(engine, sent_once):
        with suppress(PlantedError), planted_failure(engine.kv_manager, "reserve_token_batch"):
            while engine.has_work:
                engine.step()
        while engine.has_work:
            engine.step()


TRIALS = (copied_in_the_middle, taken_over, joins_at_a_boundary, fails_before_the_update)


def gate_of(sent_once: Collection[str]) -> Gate:
    """The gate of slots that send each of `sent_once`, names of SENT_ONCE, only when it has changed."""
    return Gate(
        ("block_tables",),
        LADDER["05"].options,
        (EMPTY_PADDING,),
        (partial(launches_proven, sent_once=sent_once),),
        MIXED,
        tuple(partial(trial, sent_once=sent_once) for trial in TRIALS),
    )


GATE = gate_of(SENT_ONCE)
STEP_GATES = {1: gate_of(()), 2: gate_of(("block_tables",))}  # of the build steps before the last


def check_step(number: int, build: Callable[..., InferenceEngine], part: Part) -> Report:
    """Prove the slots of build step `number`, which may send more than they must. build: `here.build`."""
    report = STEP_GATES[number].check(
        lambda model, **settings: build(model=model, block_tables=part, **settings)
    )
    return noted(report, "06", STEPS["06"][number - 1], part)
