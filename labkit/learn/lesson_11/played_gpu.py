"""Lesson 11: a GPU with two resources, that plays the streams of a step: memory, which all kernels share, and
multiprocessors, where a kernel that waits leaves room for others."""

from collections.abc import Sequence
from typing import NamedTuple

from labkit.learn.gates.gate import Build
from labkit.learn.lesson_11.chain import KernelTimes
from labkit.learn.lesson_11.played_step import steps_to_play
from labkit.learn.lesson_11.streams import StreamLaunch
from labkit.show.lanes import Span

NUM_ROWS = 8  # of the batch whose launches are played


class Task(NamedTuple):
    """A kernel for the clock: it begins when the tasks `after` have ended, waits, and then moves bytes. The
    memory serves one kernel at a time, in the order in which they ask."""

    stream: str
    name: str
    waits_us: float
    bytes_us: float
    after: tuple[int, ...]  # indices of earlier tasks


def run(tasks: Sequence[Task]) -> list[Span]:
    """When each task waits and when it moves bytes, in microseconds from the start of the first."""
    spans: list[Span] = []
    ends: dict[int, float] = {}
    memory_free = 0.0
    while len(ends) < len(tasks):
        open_tasks = [i for i, task in enumerate(tasks) if i not in ends and all(j in ends for j in task.after)]
        begins = {i: max((ends[j] for j in tasks[i].after), default=0.0) for i in open_tasks}
        first = min(open_tasks, key=lambda i: begins[i] + tasks[i].waits_us)  # of equals the first launched
        task, begin = tasks[first], begins[first]
        ready = begin + task.waits_us
        moves = max(ready, memory_free) if task.bytes_us else ready
        ends[first] = end = moves + task.bytes_us
        memory_free = end if task.bytes_us else memory_free
        spans.append(Span(task.stream, task.name, "waits", begin, moves))
        spans.append(Span(task.stream, task.name, "moves bytes", moves, end))
    return [span for span in spans if span.end > span.start]


def layers_of(build: Build, layer: Sequence[KernelTimes], batch_size: int = NUM_ROWS) -> list[Task]:
    """The two layers of a small model's step as an engine launches them, with the times of a recorded layer.

    Keys and values take their rows' share of the time; weights take all of it in each half, as if the second
    found none of them in the GPU's cache. What stands around the layers takes no time.
    """
    with steps_to_play(build) as player:
        launches = player.play(batch_size).launches
    return [_task(launch, launches, layer, batch_size) for launch in launches]


def _task(
    launch: StreamLaunch, launches: Sequence[StreamLaunch], layer: Sequence[KernelTimes], batch_size: int
) -> Task:
    places = {(other.stream, other.number): i for i, other in enumerate(launches)}
    after = tuple(places[seen] for seen in launch.waits_for.items() if seen in places)
    times = _times_of(launch, layer)
    if times is None:
        return Task(launch.stream, launch.kernel, 0.0, 0.0, after)
    bytes_us = times.weights_us + times.cache_us * launch.rows / batch_size
    return Task(launch.stream, launch.kernel, times.waits_us, bytes_us, after)


def _times_of(launch: StreamLaunch, layer: Sequence[KernelTimes]) -> KernelTimes | None:
    """The recorded times of a launch: of two products of one name, the second is the larger."""
    same = [times for times in layer if times.name == launch.kernel]
    if len(same) < 2:
        return same[0] if same else None
    weight = max((t for t in launch.inputs if t.dim() == 2), key=lambda t: t.numel())
    is_second = launch.gelu or weight.shape[1] > weight.shape[0]
    return same[is_second]


def in_a_row(layer: Sequence[KernelTimes], num_layers: int = 1, stream: str = "main") -> list[Task]:
    """Layers whose kernels follow each other, as on the rung below."""
    chain = [times for _ in range(num_layers) for times in layer]
    return [
        Task(stream, times.name, times.waits_us, times.bytes_us, (i - 1,) if i else ())
        for i, times in enumerate(chain)
    ]


def total_us(tasks: Sequence[Task]) -> float:
    """How long the tasks take together."""
    return max((span.end for span in run(tasks)), default=0.0)
