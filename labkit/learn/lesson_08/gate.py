"""Lesson 08: steps that are replayed."""

from collections.abc import Callable
from dataclasses import replace

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
from labkit.watch import LaunchRecorder, ToyGraph, device_step_of, recorded_step, steady_decode
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
    """A batch is replayed in the smallest graph that holds it: its rows are the slots that advance."""
    model, captured = small_model(), set[int]()

    def note(_: object, last_token_ids: Tensor, *__: object) -> None:
        captured.add(len(last_token_ids))

    with replaced(type(model.network), "decode_one_token", noting(note)):
        engine = build(model, dtype=torch.float32, scheduler=SchedulerConfig(max_batch_size=LARGEST_BATCH))
    slots = engine.decode_step.slots
    slots.slot_mapping.copy_(torch.arange(LARGEST_BATCH))
    for batch_size in range(1, LARGEST_BATCH + 1):
        slots.context_lens[:LARGEST_BATCH] = 0
        engine.decode_step.device_step(batch_size, 0, True)
        rows = int(slots.context_lens[:LARGEST_BATCH].sum())
        fits = min(size for size in captured if size >= batch_size)
        if rows > fits:
            raise BrokenContract(
                f"a batch takes the next larger bucket: a batch of {batch_size} ran with {rows} rows, and a "
                f"graph of {fits} was captured. Of the sizes that hold the batch, take the smallest."
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
    """Capture a step of two rows while there is no request, and replay it for two. It never raises."""
    expected, tokens = played(ToyGraph)
    proof = f"{NUM_REPLAYS} replays gave two requests the tokens {tokens}."
    report = proven("replay", [lambda: compare(played(graph_type)[0], expected)], proof)
    return noted(report, "08", "replay", graph_type) if report.ok else report


Made = list[tuple[str, list[Tensor]]]  # the name and the outputs of each launch


@torch.inference_mode()
def played(graph_type: Callable[[], LaunchRecorder]) -> tuple[list[Made], list[list[int]]]:
    """What the launches of a capture have made after each replay, and the tokens of each replay."""
    engine = InferenceEngine(
        small_model(),
        LADDER["07"].options,
        device="cpu",
        dtype=torch.float32,
        cache=CacheConfig(block_size=16, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=2),
    )
    graph, made, tokens = graph_type(), [], []
    token_ids = recorded_step(device_step_of(engine), 2, True, graph)
    with steady_decode(engine, PROMPTS, max_new_tokens=9):
        for _ in range(NUM_REPLAYS):
            graph.replay()
            made.append([(launch.name, [t.clone() for t in launch.outputs]) for launch in graph.launches])
            tokens.append(token_ids.tolist())
    return made, tokens


def compare(made: list[Made], expected: list[Made]) -> None:
    """Raise BrokenContract that names the first launch whose outputs are not as expected, and a place."""
    for replay, (launches, right_ones) in enumerate(zip(made, expected, strict=True), start=1):
        for number, ((name, outputs), (_, wanted)) in enumerate(zip(launches, right_ones, strict=True)):
            for nth, (there, right) in enumerate(zip(outputs, wanted, strict=True)):
                which = f"its output {nth} of {len(wanted)}" if len(wanted) > 1 else "its output"
                for place in map(tuple, (there != right).nonzero().tolist()):
                    raise BrokenContract(
                        f"what a launch makes lies where the capture left it: after replay {replay}, launch "
                        f"{number} ({name.removeprefix('aten.')}) has {there[place].item():.4g} at place "
                        f"{list(place)} of {which}, expected {right[place].item():.4g}. Later launches read "
                        "at the addresses of the capture. Run each launch once, in order, and copy what it "
                        "returns to the tensors in its `outputs`."
                    )
