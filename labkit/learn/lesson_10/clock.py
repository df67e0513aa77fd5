"""Lesson 10: two workers on one clock, and a simulated GPU."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch

from labkit.bench import in_turn
from labkit.bench.host_time import BLOCK_SIZE, LENGTHS, WARMUP_STEPS
from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.engine.step.resident import StepInFlight
from labkit.ladder import Rung
from labkit.learn.measured import Measured, three_engines
from labkit.show.lanes import Stretch
from labkit.watch import noting, replaced, steady_decode, steady_prompts

# --- the host and the GPU on one clock -----------------------------------------------------------------


class StepWork(NamedTuple):
    """Microseconds of a step: the host's before the GPU can begin, the GPU's, and the host's after that."""

    launch: float
    gpu: float
    accept: float

    @property
    def host(self) -> float:
        """Microseconds of the host in all."""
        return self.launch + self.accept

    @classmethod
    def of(cls, host: float, gpu: float) -> "StepWork":
        """A step with half of the host's time before the GPU's: no time of a whole step depends on that."""
        return cls(host / 2, gpu, host / 2)


def simulate(work: StepWork, num_steps: int, ahead: int = 0) -> list[Stretch]:
    """Steps of a host that launches `ahead` steps before it reads one, and of a GPU that runs them."""
    schedule: list[Stretch] = []
    host = gpu = 0.0  # when each of them is free
    gpu_ends: list[float] = []  # of the steps launched so far
    for step in range(num_steps):
        while len(gpu_ends) <= min(step + ahead, num_steps - 1):
            number = len(gpu_ends) + 1
            schedule.append(Stretch("host", "launch", host, host + work.launch, str(number)))
            host += work.launch
            begins = max(host, gpu)
            gpu = begins + work.gpu
            gpu_ends.append(gpu)
            schedule.append(Stretch("GPU", "gpu", begins, gpu, str(number)))
        begins = max(host, gpu_ends[step])  # wait for the tokens
        host = begins + work.accept
        schedule.append(Stretch("host", "accept", begins, host, str(step + 1)))
    return schedule


def step_time(work: StepWork, ahead: int = 0) -> float:
    """Microseconds from the tokens of one step to those of the next, once it runs evenly."""
    return max(work.host, work.gpu) if ahead else work.host + work.gpu


# --- a GPU that a clock simulates, so that any machine can measure overlap ------------------------------

NUM_STEPS = 40  # of a run
BATCH_SIZE, ROUNDS = 64, 5
LATE_SECONDS = 100e-6  # by which a sleep may end late


@contextmanager
def simulated_gpu(engine: InferenceEngine, step_us: float) -> Iterator[None]:
    """Inside the block, a GPU runs the engine's steps, one after another, each `step_us` microseconds long.
    It computes nothing, and only says when tokens may be read."""
    free = 0.0  # when the last step that was launched ends
    with ExitStack() as stack:

        def starting(inner: Callable[..., StepInFlight]) -> Callable[..., StepInFlight]:
            def start(*about: object) -> StepInFlight:
                nonlocal free
                step = inner(*about)
                free = max(free, time.perf_counter()) + 1e-6 * step_us
                stack.enter_context(replaced(step, "read", noting(partial(wait_until, free))))
                return step

            return start

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


def time_simulated_steps(engine: InferenceEngine, gpu_us: float, num_steps: int = NUM_STEPS) -> float:
    """Seconds per step of an engine from `host_engine`, on a simulated GPU."""
    prompts = steady_prompts(engine.scheduler.config.max_batch_size, LENGTHS)
    room = BLOCK_SIZE - max(LENGTHS)
    with simulated_gpu(engine, gpu_us), steady_decode(engine, prompts, WARMUP_STEPS, room):
        started = time.perf_counter()
        for _ in range(num_steps):
            engine.step()
        return (time.perf_counter() - started) / num_steps


def measure_simulated(
    below: Rung, rung: Rung, parts: Mapping[str, Part], gpu_us: float, device: torch.device | str
) -> Measured:
    """Time a step of the rung below, the reader's engine and the package's in turn, on a simulated GPU."""
    builds = three_engines(below, rung, parts, BATCH_SIZE, device)
    measures = [lambda build=build: time_simulated_steps(build(), gpu_us) for build in builds.values()]
    return Measured(BATCH_SIZE, dict(zip(builds, in_turn(measures, ROUNDS), strict=True)))
