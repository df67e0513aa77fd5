"""Lesson 10: a GPU that a clock plays, so that overlap can be measured on any machine."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from labkit.bench import in_turn
from labkit.bench.host_time import BLOCK_SIZE, LENGTHS, WARMUP_STEPS
from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.engine.step.resident import StepInFlight
from labkit.ladder import Rung
from labkit.learn.measured import Measured, three_engines
from labkit.watch import replaced, steady_decode, steady_prompts

NUM_STEPS = 40  # of a run
LATE_SECONDS = 100e-6  # by which a sleep may end late


class PlayedGPU:
    """A GPU that takes the same time for every step, and one step after another. It computes nothing: it says
    when a step's tokens may be read."""

    def __init__(self, step_us: float) -> None:
        self.step_seconds = 1e-6 * step_us
        self._free = 0.0  # when the last step that was launched ends

    def synchronize(self) -> None:
        """Wait until all steps that were launched have ended."""
        wait_until(self._free)

    @contextmanager
    def runs(self, engine: InferenceEngine) -> Iterator[None]:
        """Inside the block, this GPU runs the engine's steps."""
        with ExitStack() as stack:

            def starting(inner: Callable[..., StepInFlight]) -> Callable[..., StepInFlight]:
                def start(*about: object) -> StepInFlight:
                    step = inner(*about)
                    self._free = ends = max(self._free, time.perf_counter()) + self.step_seconds
                    stack.enter_context(replaced(step, "read", lambda inner: lambda: reading(inner, ends)))
                    return step

                return start

            def reading(inner: Callable[[], Sequence[int | None]], ends: float) -> Sequence[int | None]:
                wait_until(ends)
                return inner()

            stack.enter_context(replaced(engine.decode_step, "start", starting))
            yield


def wait_until(moment: float) -> None:
    """Return at this moment of `time.perf_counter`.

    It sleeps, because a wait that keeps the processor busy lasts too long on a machine with other work; but
    not to the end, because a sleep ends late.
    """
    while (left := moment - time.perf_counter()) > 0:
        if left > 2 * LATE_SECONDS:
            time.sleep(left - LATE_SECONDS)


def time_played_steps(
    engine: InferenceEngine, gpu_us: float, num_steps: int = NUM_STEPS, synchronize: bool = False
) -> float:
    """Seconds per step of an engine from `host_engine`, on a GPU that is played.

    synchronize: after each step the clock waits for the GPU, as a careless benchmark does.
    """
    gpu = PlayedGPU(gpu_us)
    prompts = steady_prompts(engine.scheduler.config.max_batch_size, LENGTHS)
    room = BLOCK_SIZE - max(LENGTHS)
    with gpu.runs(engine), steady_decode(engine, prompts, WARMUP_STEPS, room):
        started = time.perf_counter()
        for _ in range(num_steps):
            engine.step()
            if synchronize:
                gpu.synchronize()
        return (time.perf_counter() - started) / num_steps


def measure_played(
    below: Rung,
    rung: Rung,
    parts: Mapping[str, Part],
    gpu_us: float,
    device: torch.device | str,
    batch_size: int = 64,
    rounds: int = 5,
    synchronize: bool = False,
) -> Measured:
    """Time a step of the rung below, the reader's engine and the package's, in turn: the host works, and a
    clock plays the GPU."""
    builds = three_engines(below, rung, parts, batch_size, device)
    measures = [
        lambda build=build: time_played_steps(build(), gpu_us, synchronize=synchronize)
        for build in builds.values()
    ]
    return Measured(batch_size, dict(zip(builds, in_turn(measures, rounds), strict=True)))
