"""Lesson 11: a recorded layer, and a simulated GPU that runs it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from labkit.bench.limit import on_paper
from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.learn.gates.gate import small_model
from labkit.learn.lesson_11.streams import StreamLaunch, steps_to_play
from labkit.results import TracedStep
from labkit.show.lanes import Span

# --- a layer's kernels as recorded: how long each one's bytes take, and how long it waits --------------

KERNELS = {  # by a part of the name that a GPU reports
    "norm_linear": "norm_linear",
    "linear_residual": "linear_residual",
    "attn_append": "attention",
    "embed_slots": "embed",
}


class KernelTimes(NamedTuple):
    """Microseconds of a kernel: how long its weights take at the memory's rate, its keys and values, and how
    long it does neither."""

    name: str
    weights_us: float
    cache_us: float
    waits_us: float

    @property
    def bytes_us(self) -> float:
        return self.weights_us + self.cache_us

    @property
    def us(self) -> float:
        return self.bytes_us + self.waits_us


def layer_times(step: TracedStep, bandwidth: float) -> list[KernelTimes]:
    """The five kernels of one layer of GPT-2 in float16, in order, from a recorded step.

    A trace has the mean of kernels of one name, so both `norm_linear` take the same time, and both
    `linear_residual`; what their bytes take, at `bandwidth` bytes per second, is each one's own.
    """
    us = kernel_us(step)
    network = on_paper()
    layer = network.decoder_weights().layers[0]
    values = network.config.kv_values_per_token // len(network.decoder_weights().layers)
    cache_us = step.batch_size * (step.context_len + 1) * values * network.dtype.itemsize / bandwidth * 1e6

    def times(name: str, weight_bytes: int, cache_us: float = 0.0) -> KernelTimes:
        weights_us = 1e6 * weight_bytes / bandwidth
        return KernelTimes(name, weights_us, cache_us, max(0.0, us[name] - weights_us - cache_us))

    def product(name: str, linear: Sequence) -> KernelTimes:
        return times(name, sum(t.numel() * t.element_size() for t in linear if t is not None))

    return [
        product("norm_linear", layer.qkv),
        times("attention", 0, cache_us),
        product("linear_residual", layer.attention_out),
        product("norm_linear", layer.mlp_in),
        product("linear_residual", layer.mlp_out),
    ]


def kernel_us(step: TracedStep) -> dict[str, float]:
    """Mean microseconds of a fused step's own kernels in a trace, by the names of `FusedKernels`."""
    return {
        name: kernel.us / kernel.count
        for kernel in step.kernels
        for part, name in KERNELS.items()
        if part in kernel.name
    }


# --- a simulated GPU with two resources, which runs the streams of a step ------------------------------

NUM_ROWS = 8  # of the batch whose launches are simulated
NUM_LAYERS = 12  # of GPT-2


class Task(NamedTuple):
    """A kernel for the clock: it begins when the tasks `after` have ended, waits, and then moves bytes. The
    memory serves one kernel at a time, in the order in which they ask."""

    stream: str
    name: str
    waits_us: float
    bytes_us: float
    after: tuple[int, ...]  # indices of earlier tasks


def run(tasks: Sequence[Task]) -> list[Span]:
    """When each task waits, queues and moves bytes, in microseconds from the start of the first."""
    spans: list[Span] = []
    ends: dict[int, float] = {}
    memory_free = 0.0
    while len(ends) < len(tasks):
        open_tasks = [
            i for i, task in enumerate(tasks) if i not in ends and all(j in ends for j in task.after)
        ]
        begins = {i: max((ends[j] for j in tasks[i].after), default=0.0) for i in open_tasks}
        first = min(open_tasks, key=lambda i: begins[i] + tasks[i].waits_us)  # of equals the first launched
        task, begin = tasks[first], begins[first]
        ready = begin + task.waits_us
        moves = max(ready, memory_free) if task.bytes_us else ready
        ends[first] = end = moves + task.bytes_us
        memory_free = end if task.bytes_us else memory_free
        spans.append(Span(task.stream, task.name, "waits", begin, ready))
        spans.append(Span(task.stream, task.name, "queues for memory", ready, moves))
        spans.append(Span(task.stream, task.name, "moves bytes", moves, end))
    return [span for span in spans if span.end > span.start]


def layers_of(
    build: Callable[..., InferenceEngine], layer: Sequence[KernelTimes], **parts: Part
) -> list[Task]:
    """The layers of a step as an engine with the reader's part launches them, with the times of a recorded
    layer.

    build: `here.build`. Keys and values take their rows' share of the time; weights take all of it in each
    half, as if the second found none of them in the GPU's cache. What stands around the layers takes no time.
    """
    with steps_to_play(
        lambda model, **settings: build(model=model, **parts, **settings), small_model(NUM_LAYERS)
    ) as player:
        launches = player.play(NUM_ROWS).launches
    return [_task(launch, launches, layer) for launch in launches]


def _task(launch: StreamLaunch, launches: Sequence[StreamLaunch], layer: Sequence[KernelTimes]) -> Task:
    places = {(other.stream, other.number): i for i, other in enumerate(launches)}
    after = tuple(places[seen] for seen in launch.waits_for.items() if seen in places)
    same = [times for times in layer if times.name == launch.kernel]
    is_second = False
    if len(same) > 1:  # of two products of one name, the second is the larger
        weight = max((t for t in launch.inputs if t.dim() == 2), key=lambda t: t.numel())
        is_second = launch.gelu or weight.shape[1] > weight.shape[0]
    times = same[is_second] if same else KernelTimes(launch.kernel, 0.0, 0.0, 0.0)
    bytes_us = times.weights_us + times.cache_us * launch.rows / NUM_ROWS
    return Task(launch.stream, launch.kernel, times.waits_us, bytes_us, after)


def in_a_row(layer: Sequence[KernelTimes], num_layers: int = NUM_LAYERS) -> list[Task]:
    """Layers whose kernels follow each other, as on the rung below."""
    chain = [times for _ in range(num_layers) for times in layer]
    return [
        Task("main", times.name, times.waits_us, times.bytes_us, (i - 1,) if i else ())
        for i, times in enumerate(chain)
    ]


def total_us(tasks: Sequence[Task]) -> float:
    """How long the tasks take together."""
    return max((span.end for span in run(tasks)), default=0.0)


def num_kernels(tasks: Sequence[Task]) -> int:
    """How many of the tasks are kernels of the layers."""
    return sum(task.waits_us > 0 for task in tasks)
