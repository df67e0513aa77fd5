"""Lesson 10: the host and the GPU on one clock."""

from typing import NamedTuple

import pandas as pd

from labkit.results import DeviceTimeRecord, HostTimeRecord
from labkit.show.lanes import Busy

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


def simulate(work: StepWork, num_steps: int, ahead: int = 0) -> list[Busy]:
    """Steps of a host that launches `ahead` steps before it reads one, and of a GPU that runs them in
    order."""
    schedule: list[Busy] = []
    host = gpu = 0.0  # when each of them is free
    gpu_ends: list[float] = []  # of the steps launched so far
    for step in range(num_steps):
        while len(gpu_ends) <= min(step + ahead, num_steps - 1):
            number = len(gpu_ends)
            schedule.append(Busy("host", "launch", number, host, host + work.launch))
            host += work.launch
            begins = max(host, gpu)
            gpu = begins + work.gpu
            gpu_ends.append(gpu)
            schedule.append(Busy("GPU", "gpu", number, begins, gpu))
        begins = max(host, gpu_ends[step])  # wait for the tokens
        host = begins + work.accept
        schedule.append(Busy("host", "accept", step, begins, host))
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


def hidden_table(host_time: HostTimeRecord, device_time: DeviceTimeRecord, rung: str) -> pd.DataFrame:
    """The host's work in a step beside the GPU's, a row for each batch size that both records have."""
    steps = device_time.steps
    rows = {}
    for host in host_time.times[rung]:
        if (step := steps.get((rung, host.batch_size))) is not None:
            rows[f"B = {host.batch_size}"] = {
                "host (us)": round(host.step_us),
                "GPU (us)": round(step.gpu_busy_us),
                "host, % of the GPU": round(100 * host.step_us / step.gpu_busy_us),
                "GPU idle in a trace (us)": round(step.idle_us, 1),
                "GPU idle in a trace (%)": round(100 * step.idle_share, 1),
            }
    return pd.DataFrame.from_dict(rows, orient="index")
