"""Lesson 08: whether a reader's replay runs a captured step again."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract, Unattempted
from labkit.learn.gates import Report
from labkit.learn.gates.gate import raised, small_model
from labkit.learn.steps import noted
from labkit.watch import (
    CapturedLaunch,
    LaunchRecorder,
    ToyGraph,
    device_step_of,
    recorded_step,
    steady_decode,
)

PROMPTS = ((1, 2, 3), (7, 8))
NUM_REPLAYS = 4


def check_replay(graph_type: Callable[[], LaunchRecorder]) -> Report:
    """Capture a step of two rows while there is no request, and replay it for two requests.

    Whatever each launch makes must be in the tensors of the capture afterwards, and none may run twice.
    It never raises, but for an interrupt.
    """
    launches, expected, tokens, _ = played(ToyGraph)
    try:
        _, made, _, runs = played(graph_type)
        compare(launches, made, expected)
        require_none_twice(launches, runs)
    except Unattempted:
        return Report(False, "replay: not attempted yet.")
    except BrokenContract as broken:
        return Report.broken("replay", broken)
    except Exception as error:
        return Report(False, f"replay {raised(error)}")
    report = Report(True, f"replay: right. {NUM_REPLAYS} replays gave two requests the tokens {tokens}.")
    return noted(report, "08", "replay", graph_type)


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
    graph.launches = [counted(launch, number, runs) for number, launch in enumerate(launches)]
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
                f"({launch.name.removeprefix('aten.')}) has its output at another address now. A name is no "
                "address: a graph's launches read at the old one. Copy the numbers there: `a.copy_(b)`."
            )


def counted(launch: CapturedLaunch, number: int, runs: Counter[int]) -> CapturedLaunch:
    """The launch, which counts how often it runs."""

    def run(*args: object, **kwargs: object) -> object:
        runs[number] += 1
        return launch.function(*args, **kwargs)

    return launch._replace(function=run)


def require_none_twice(launches: list[CapturedLaunch], runs: Counter[int]) -> None:
    """Raise BrokenContract that names the first launch that ran more often than there were replays."""
    for number, launch in enumerate(launches):
        if runs[number] > NUM_REPLAYS:
            raise BrokenContract(
                f"a replay runs each launch once: launch {number} ({launch.name.removeprefix('aten.')}) ran "
                f"{runs[number]} times in {NUM_REPLAYS} replays. In a step that draws, or counts, a second "
                "run gives something else."
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
                        f"{right[tuple(place)].item():.4g}. The launches behind it read at the addresses of "
                        "the capture. Run each launch once, in order, and copy what it gives back to the "
                        "tensors in its `outputs`."
                    )
