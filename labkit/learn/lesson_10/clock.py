"""Lesson 10: two workers on one clock, a simulated GPU, and the orders of two streams."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

from labkit.bench import in_turn
from labkit.bench.host_time import BLOCK_SIZE, LENGTHS, WARMUP_STEPS
from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.engine.step.resident import StepInFlight
from labkit.ladder import Rung
from labkit.learn.measured import Measured, three_engines
from labkit.results import DeviceTimeRecord, HostTimeRecord
from labkit.show.lanes import Stretch
from labkit.watch import replaced, steady_decode, steady_prompts

# --- the host and the GPU on one clock -----------------------------------------------------------------

EVEN_AFTER = 200  # steps: with more of them ahead, the slower of the two decides only after a while


class StepWork(NamedTuple):
    """What one step takes, in microseconds: of the host before the GPU can begin, of the GPU, and of the host
    after the tokens have arrived."""

    launch: float
    gpu: float
    accept: float

    @property
    def host(self) -> float:
        """Microseconds of the host in all."""
        return self.launch + self.accept

    @classmethod
    def of(cls, host: float, gpu: float) -> "StepWork":
        """A step with half of the host's time before the GPU's, and half after it: no time of a whole step
        depends on that."""
        return cls(host / 2, gpu, host / 2)


def simulate(work: StepWork, num_steps: int, ahead: int = 0) -> list[Stretch]:
    """Steps of a host that launches `ahead` steps before it reads one, and of a GPU that runs them in
    order."""
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


def handed_out(work: StepWork, num_steps: int, ahead: int = 0) -> list[float]:
    """When each step's tokens are handed out, in microseconds from the beginning of the first launch."""
    return [busy.end for busy in simulate(work, num_steps, ahead) if busy.work == "accept"]


def step_time(work: StepWork, ahead: int = 0) -> float:
    """Microseconds from the tokens of one step to those of the next, once it runs evenly."""
    *_, last_but_one, last = handed_out(work, EVEN_AFTER + 10, ahead)[: EVEN_AFTER + 2]
    return last - last_but_one


def recorded_work(
    host_time: HostTimeRecord, device_time: DeviceTimeRecord, rung: str, batch_size: int
) -> StepWork:
    """A recorded step: the host's part by the clock, with the model taken out, and the GPU's from a trace.

    What a trace says of the host is of no use: the profiler slows the host down, and not the GPU.
    """
    host = host_time.time(rung, batch_size).step_us
    return StepWork.of(host, device_time.step(rung, batch_size).gpu_busy_us)


# --- a GPU that a clock simulates, so that any machine can measure overlap ------------------------------

NUM_STEPS = 40  # of a run
LATE_SECONDS = 100e-6  # by which a sleep may end late


class SimulatedGPU:
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


def time_simulated_steps(
    engine: InferenceEngine, gpu_us: float, num_steps: int = NUM_STEPS, synchronize: bool = False
) -> float:
    """Seconds per step of an engine from `host_engine`, on a simulated GPU.

    synchronize: after each step the clock waits for the GPU, as a careless benchmark does.
    """
    gpu = SimulatedGPU(gpu_us)
    prompts = steady_prompts(engine.scheduler.config.max_batch_size, LENGTHS)
    room = BLOCK_SIZE - max(LENGTHS)
    with gpu.runs(engine), steady_decode(engine, prompts, WARMUP_STEPS, room):
        started = time.perf_counter()
        for _ in range(num_steps):
            engine.step()
            if synchronize:
                gpu.synchronize()
        return (time.perf_counter() - started) / num_steps


def measure_simulated(
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
    clock simulates the GPU."""
    builds = three_engines(below, rung, parts, batch_size, device)
    measures = [
        lambda build=build: time_simulated_steps(build(), gpu_us, synchronize=synchronize)
        for build in builds.values()
    ]
    return Measured(batch_size, dict(zip(builds, in_turn(measures, rounds), strict=True)))


# --- the orders in which a GPU may run what two streams hold -------------------------------------------


def orders(streams: Sequence[Sequence]) -> Iterator[tuple]:
    """Every order in which a GPU may run what the streams hold: within a stream as launched, between streams
    any."""
    if not any(streams):
        yield ()
    for i, stream in enumerate(streams):
        if stream:
            rest = [*streams[:i], stream[1:], *streams[i + 1 :]]
            yield from ((stream[0], *others) for others in orders(rest))
