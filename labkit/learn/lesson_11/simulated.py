"""Lesson 11: simulated streams and a step in them, and a simulated GPU that runs them with recorded times."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from labkit.bench.limit import on_paper
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.parts import Part
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import PLAIN, FusedDeviceStep, FusedKernels
from labkit.engine.step.lanes import NUM_LANES, Lane, LanedDeviceStep
from labkit.kernels import paged_attention_append_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, small_model
from labkit.model import LanguageModel
from labkit.results import TracedStep
from labkit.show.lanes import Stretch
from labkit.watch.launches import device_step_of, longest_possible
from labkit.watch.operators import OperatorMode, storage, tensors_of
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

# --- streams on any machine, which refuse a kernel that does not wait for what it reads ----------------

Seen = dict[str, int]  # by stream, how many of its launches have ended for sure


class SimulatedStream:
    """A queue of launches, and what each of them waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: Seen = defaultdict(int)

    def wait_stream(self, other: "SimulatedStream") -> None:
        """What is launched here from now on waits for all that was launched there until now."""
        for stream, number in other.seen.items():
            self.seen[stream] = max(self.seen[stream], number)


class StreamLaunch(NamedTuple):
    """A launch: its kernel and stream, its number there, and of each stream the launches that it waits for.

    inputs, rows: its tensors, and the rows of what it makes.
    """

    kernel: str
    stream: str
    number: int
    waits_for: Seen
    inputs: tuple[Tensor, ...]
    rows: int

    def is_behind(self, other: "StreamLaunch") -> bool:
        """Whether it begins for sure after the other has ended."""
        return self.waits_for.get(other.stream, 0) >= other.number

    def __str__(self) -> str:
        return f"{self.kernel} in the {self.stream} stream"


class SimulatedStreams(OperatorMode):
    """A step's streams, and whether each kernel waits for what it reads.

    Inside its `with`, operators and functions from `as_kernel` are launches of the current stream. They do
    their work at once, in the order of the launches, which a GPU need not keep: so a race is told by what
    the streams wait for, and not by the numbers that come out. Raises BrokenContract for one.
    """

    are_captured = True

    def __init__(self) -> None:
        super().__init__()
        self.workspaces: dict[int, str] = {}  # by address, what they are called
        self.main = SimulatedStream("main")
        self.side = SimulatedStream("side")
        self.launches: list[StreamLaunch] = []
        self._written: dict[int, StreamLaunch] = {}
        self._alive: list[Tensor] = []  # so that no address is given twice

    @contextmanager
    def launching_in(self, stream: SimulatedStream) -> Iterator[None]:
        """Inside the block, launches go to `stream`."""
        before, self.main = self.main, stream
        try:
            yield
        finally:
            self.main = before

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Note an operator unless it only makes a view or reserves memory."""
        name, inputs = func.overloadpacket.__name__, tensors_of((args, kwargs))
        there = {storage(tensor) for tensor in inputs}
        made = [tensor for tensor in tensors_of(out) if storage(tensor) not in there]
        if name.startswith("empty") or not (made or name.endswith("_")):
            return
        self.launch(name, inputs, made or tensors_of(out))

    def on_kernel(self, name: str, function: Callable, args: tuple, kwargs: dict, out: object) -> None:
        """Note a kernel, with the workspace that it writes."""
        workspace = getattr(function, "workspace", None)
        writes = tensors_of(out) if workspace is None else (*tensors_of(out), workspace)
        self.launch(name, tensors_of((args, kwargs)), writes)

    def launch(self, kernel: str, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        """Note a launch of the current stream, and refuse a race."""
        stream = self.main
        waits_for = dict(stream.seen)
        stream.seen[stream.name] += 1
        rows = len(writes[0]) if writes and writes[0].dim() else 0
        this = StreamLaunch(kernel, stream.name, stream.seen[stream.name], waits_for, tuple(reads), rows)
        for tensor in (*reads, *writes):
            self._check(this, tensor)
        self._written |= {storage(tensor): this for tensor in writes}
        self._alive += [*reads, *writes]
        self.launches.append(this)

    def _check(self, this: StreamLaunch, tensor: Tensor) -> None:
        before = self._written.get(storage(tensor))
        if before is None or this.is_behind(before):
            return
        if name := self.workspaces.get(storage(tensor)):
            raise BrokenContract(
                f"launches that run at once have workspaces of their own: {this} uses {name}, while {before} "
                "is still at work there. They would count each other's parts. Each half has its own lane."
            )
        raise BrokenContract(
            f"a kernel waits for what it reads: {this} reads a tensor {list(tensor.shape)}, made by "
            f"{before.kernel}, which {before} writes, and nothing makes it wait. It may get the values from "
            "before. A `wait_stream` between the two is missing, or it is in the wrong place."
        )


# --- a step whose halves go to simulated streams, with kernels that tell their lane --------------

LEAST_ROWS = 4  # of a batch that is cut, in place of the engine's 32
NUM_REQUESTS, NUM_SLOTS = 6, 8
LENGTHS = (3, 9, 20, 13)  # tokens of the prompts: the next token of each has room in its last block


class SimulatedStep(NamedTuple):
    """What a step's layers made, what a step that is not cut makes, and the launches, in order."""

    made: Tensor  # [B, E]
    expected: Tensor  # [B, E]
    slot_mapping: Tensor  # [B]
    padding_slot: int
    launches: list[StreamLaunch]


@contextmanager
def steps_to_play(build: Build, model: LanguageModel | None = None) -> Iterator["StepPlayer"]:
    """Inside the block, an engine with the reader's part serves a batch, whose next step can be simulated.

    model: the gates' small one by default.
    """
    engine: InferenceEngine = build(
        model or small_model(),
        dtype=torch.float32,
        cache=CacheConfig(block_size=8, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=NUM_SLOTS, prefill_max_batch_size=NUM_SLOTS),
    )
    prompts = steady_prompts(NUM_REQUESTS, LENGTHS)
    with steady_decode(engine, prompts, warmup_steps=1), torch.inference_mode():
        yield StepPlayer(device_step_of(engine))


class StepPlayer:
    """Plays the next step of an engine, again and again: no slot advances."""

    def __init__(self, step: LanedDeviceStep) -> None:
        self.step = step
        self.kv_manager = step.attention.kv_manager
        plain = AttendAndWrite(self.kv_manager, paged_attention_append_plain)
        self.whole = FusedDeviceStep(step.slots, step.network, plain, PLAIN)

    def play(self, batch_size: int) -> SimulatedStep:
        """The layers of a batch, in simulated streams. Raises BrokenContract for a race, and whatever
        the part raises."""
        slots, longest = self.step.slots, longest_possible(self.step)
        slot_mapping = slots.slot_mapping[:batch_size]
        expected = self.whole.through_layers(slot_mapping, longest)
        streams = SimulatedStreams()
        lanes = [self._lane(streams, i) for i in range(NUM_LANES)]
        step = type(self.step)(slots, self.step.network, lanes)
        step.least_rows = LEAST_ROWS
        with replaced(step, "streams", lambda _: streams), streams:
            streams.launch("the step before", (), (slots.context_lens, slots.last_token_ids))
            made = step.through_layers(slot_mapping, longest)
            F.layer_norm(made, made.shape[-1:])  # the step's next kernel
        return SimulatedStep(made, expected, slot_mapping, slots.padding_slot, streams.launches[1:])

    def _lane(self, streams: SimulatedStreams, number: int) -> Lane:
        """A lane of plain twins, as launches, with a workspace that is only noted."""
        attention = partial(paged_attention_append_plain)
        attention.workspace = torch.zeros(1)  # which the kernel would write
        streams.workspaces[storage(attention.workspace)] = f"attention's workspace of lane {number}"
        kernels = PLAIN._asdict()
        return Lane(
            AttendAndWrite(self.kv_manager, streams.as_kernel("attention", attention)),
            FusedKernels(**{name: streams.as_kernel(name, kernel) for name, kernel in kernels.items()}),
        )


# --- a layer's kernels as recorded: how long each one's bytes take, and how long it waits --------------

KERNELS = {  # by a part of the name that a GPU reports
    "norm_linear": "norm_linear",
    "linear_residual": "linear_residual",
    "attn_append": "attention",
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
    us = {
        name: kernel.us / kernel.count
        for kernel in step.kernels
        for part, name in KERNELS.items()
        if part in kernel.name
    }
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


def run(tasks: Sequence[Task]) -> list[Stretch]:
    """When each task waits, queues and moves bytes, in microseconds from the start of the first."""
    spans: list[Stretch] = []
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
        spans.append(Stretch(task.stream, "waits", begin, ready, task.name))
        spans.append(Stretch(task.stream, "queues for memory", ready, moves, task.name))
        spans.append(Stretch(task.stream, "moves bytes", moves, end, task.name))
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
    places = {(launch.stream, launch.number): i for i, launch in enumerate(launches)}
    seen: Counter[tuple[str, str]] = Counter()
    tasks = []
    for launch in launches:
        same = [times for times in layer if times.name == launch.kernel]
        same = same or [KernelTimes(launch.kernel, 0.0, 0.0, 0.0)]
        times = same[seen[launch.stream, launch.kernel] % len(same)]  # two products of a layer have one name
        seen[launch.stream, launch.kernel] += 1
        bytes_us = times.weights_us + times.cache_us * launch.rows / NUM_ROWS
        after = tuple(places[other] for other in launch.waits_for.items() if other in places)
        tasks.append(Task(launch.stream, launch.kernel, times.waits_us, bytes_us, after))
    return tasks


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
