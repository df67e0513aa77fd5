"""Lesson 08: steps that are replayed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Report
from labkit.learn.gates.gate import Build, Gate, proven, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import replays_proven, steps_proven
from labkit.learn.gates.schedule import telling
from labkit.learn.steps import noted
from labkit.watch import (
    CapturedLaunch,
    LaunchRecorder,
    ToyGraph,
    device_step_of,
    recorded_step,
    steady_decode,
)
from labkit.watch.replaced import noting, replaced

# --- a device's step that is captured once, and replayed -----------------------------------------------

LARGEST_BATCH = 6  # no power of two


def sizes_for_any_engine(build: Build) -> None:
    """`sizes_for`, where a step has one, goes up to the largest batch, and not beyond, for any engine."""
    engine = build(small_model(), dtype=torch.float32, scheduler=SchedulerConfig(max_batch_size=1))
    sizes_for = getattr(engine.decode_step.device_step, "sizes_for", None)
    for largest in (LARGEST_BATCH, 20, 100) if sizes_for else ():
        if (found := max(sizes := list(sizes_for(largest)), default=0)) != largest:
            raise BrokenContract(
                f"the largest bucket has as many rows as the engine has slots: `sizes_for({largest})` gives "
                f"{sizes}, whose largest is {found}, expected {largest}. A batch of {largest} needs a graph, "
                "and there are no slots for more."
            )


def every_batch(build: Build) -> None:
    """Batches of every size, greedy and not, are replays that make the plain step's tokens."""
    engine = build(
        small_model(),
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=30, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=LARGEST_BATCH, prefill_max_batch_size=LARGEST_BATCH),
    )
    with telling(), replays_proven(engine), steps_proven(engine):
        for params in MIXED[:2]:
            for i in range(LARGEST_BATCH):  # which ends one step after the one before
                engine.add_request([7 + i] * (1 + i % 3), replace(params, max_new_tokens=2 + i))
            while engine.has_work:
                engine.step()


@torch.inference_mode()
def smallest_bucket(build: Build) -> None:
    """A trial: a batch is replayed in the smallest graph that holds it. What rows a replay has is seen in the
    slots that it leaves a token in; no request has them, so all of them are empty."""
    model, captured = small_model(), set[int]()

    def note(_: object, last_token_ids: Tensor, *__: object) -> None:
        captured.add(len(last_token_ids))

    with replaced(type(model.network), "decode_one_token", noting(note)):
        engine = build(model, dtype=torch.float32, scheduler=SchedulerConfig(max_batch_size=LARGEST_BATCH))
    step, slots = engine.decode_step.device_step, engine.decode_step.slots
    slots.slot_mapping.copy_(torch.arange(LARGEST_BATCH))
    slots.context_lens.fill_(-1)
    for batch_size in range(1, LARGEST_BATCH + 1):
        ran = torch.zeros(LARGEST_BATCH, dtype=torch.bool, device=slots.slot_mapping.device)
        for token_id in (1, 2):  # a row may make the token that it has
            slots.last_token_ids.fill_(token_id)
            step(batch_size, 0, True)
            ran |= slots.last_token_ids[:LARGEST_BATCH] != token_id
        rows, fits = int(ran.sum()), min((n for n in captured if n >= batch_size), default=0)
        if fits and rows > fits:
            raise BrokenContract(
                f"a batch takes the next larger bucket: a batch of {batch_size} ran with {rows} rows, and a "
                f"graph of {fits} was captured. {rows - batch_size} rows are padding, expected "
                f"{fits - batch_size}: of the sizes that hold the batch, take the smallest."
            )


GATE = Gate(
    ("launch",),
    LADDER["07"].options,
    (),
    (replays_proven, steps_proven),
    MIXED,
    trials=(sizes_for_any_engine, every_batch),
    costs=(smallest_bucket,),
)


# --- whether a reader's replay runs a captured step again ----------------------------------------------

PROMPTS = ((1, 2, 3), (7, 8))
NUM_REPLAYS = 4


def check_replay(graph_type: Callable[[], LaunchRecorder]) -> Report:
    """Capture a step of two rows while there is no request, and replay it for two requests.

    Whatever each launch makes must be in the tensors of the capture afterwards, and none may run twice.
    It never raises, but for an interrupt.
    """
    launches, expected, tokens, _ = played(ToyGraph)

    def replays_alike() -> None:
        _, made, _, runs = played(graph_type)
        compare(launches, made, expected)
        require_none_twice(launches, runs)

    proof = f"{NUM_REPLAYS} replays gave two requests the tokens {tokens}."
    report = proven("replay", [replays_alike], proof)
    return noted(report, "08", "replay", graph_type) if report.ok else report


Outputs = list[list[Tensor]]  # of each launch


@torch.inference_mode()
def played(
    graph_type: Callable[[], LaunchRecorder],
) -> tuple[list[CapturedLaunch], list[Outputs], list[list[int]], Counter[int]]:
    """The launches of a capture, their outputs after each replay, the tokens of each replay, and how often
    each launch ran in all replays."""
    engine = InferenceEngine(
        small_model(),
        LADDER["07"].options,
        device="cpu",
        dtype=torch.float32,
        cache=CacheConfig(block_size=16, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=2),
    )
    graph = graph_type()
    token_ids = recorded_step(device_step_of(engine), 2, True, graph)
    launches, after, tokens, runs = list(graph.launches), [], [], Counter[int]()
    addresses = [[output.data_ptr() for output in launch.outputs] for launch in launches]

    def count(number: int, *_: object, **__: object) -> None:
        runs[number] += 1

    graph.launches = [
        launch._replace(function=noting(partial(count, number))(launch.function))
        for number, launch in enumerate(launches)
    ]
    with steady_decode(engine, PROMPTS, max_new_tokens=9):
        for _ in range(NUM_REPLAYS):
            graph.replay()
            require_same_addresses(launches, addresses)
            after.append([[output.clone() for output in launch.outputs] for launch in launches])
            tokens.append(token_ids.tolist())
    return launches, after, tokens, runs


def require_same_addresses(launches: list[CapturedLaunch], addresses: list[list[int]]) -> None:
    """Raise BrokenContract that names the first launch whose outputs lie elsewhere than after the capture."""
    for number, (launch, where) in enumerate(zip(launches, addresses, strict=True)):
        if [output.data_ptr() for output in launch.outputs] != where:
            raise BrokenContract(
                f"what a launch makes lies where the capture left it: launch {number} "
                f"({launch.name.removeprefix('aten.')}) has its output at another address now. A name is "
                "not an address: a graph's launches read at the old address. Copy the values there: "
                "`a.copy_(b)`."
            )


def require_none_twice(launches: list[CapturedLaunch], runs: Counter[int]) -> None:
    """Raise BrokenContract that names the first launch that ran more often than there were replays."""
    for number, launch in enumerate(launches):
        if runs[number] > NUM_REPLAYS:
            raise BrokenContract(
                f"a replay runs each launch once: launch {number} ({launch.name.removeprefix('aten.')}) ran "
                f"{runs[number]} times in {NUM_REPLAYS} replays. In a step that draws, or that counts, a "
                "second run gives something else."
            )


def compare(launches: list[CapturedLaunch], made: list[Outputs], expected: list[Outputs]) -> None:
    """Raise BrokenContract that names the first launch whose outputs are not as expected, and a place."""
    for replay, (those, wanted) in enumerate(zip(made, expected, strict=True), start=1):
        for number, launch in enumerate(launches):
            for nth, (there, right) in enumerate(zip(those[number], wanted[number], strict=True)):
                which = (
                    f"its output {nth} of {len(wanted[number])}" if len(wanted[number]) > 1 else "its output"
                )
                for place in (there != right).nonzero().tolist():
                    raise BrokenContract(
                        "what a launch makes lies where the capture left it: after replay "
                        f"{replay}, launch {number} ({launch.name.removeprefix('aten.')}) has "
                        f"{there[tuple(place)].item():.4g} at place {place} of {which}, expected "
                        f"{right[tuple(place)].item():.4g}. Later launches read at the addresses of the "
                        "capture. Run each launch once, in order, and copy what it returns to the tensors in "
                        "its `outputs`."
                    )
