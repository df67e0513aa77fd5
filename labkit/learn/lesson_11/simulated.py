"""Lesson 11: simulated streams and a step in them, and a simulated GPU that runs them with recorded times."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, permutations
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
from labkit.kvcache import KVBlockManager
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, small_model
from labkit.results import TracedStep
from labkit.show.lanes import Stretch
from labkit.watch.launches import device_step_of, longest_possible
from labkit.watch.operators import OperatorMode, storage, tensors_of
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

# --- streams on any machine, which refuse a kernel that does not wait for what it reads ----------------


class SimulatedStream:
    """A queue of launches. seen: the numbers of all that the next one waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: set[int] = set()

    def wait_stream(self, other: "SimulatedStream") -> None:
        """What is launched here from now on waits for all that was launched there until now."""
        self.seen |= other.seen


class StreamLaunch(NamedTuple):
    """A launch: its kernel and stream, its number, and the numbers of those that it waits for.

    inputs, rows: its tensors, and the rows of what it makes.
    """

    kernel: str
    stream: str
    number: int
    waits_for: frozenset[int]
    inputs: tuple[Tensor, ...]
    rows: int

    def is_behind(self, other: "StreamLaunch") -> bool:
        """Whether it begins for sure after the other has ended."""
        return other.number in self.waits_for

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
        stream, number = self.main, len(self.launches)
        rows = len(writes[0]) if writes and writes[0].dim() else 0
        this = StreamLaunch(kernel, stream.name, number, frozenset(stream.seen), tuple(reads), rows)
        stream.seen.add(number)
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


@contextmanager
def steps_to_play(build: Build, num_layers: int = 2, **parts: Part) -> Iterator[LanedDeviceStep]:
    """Inside the block, an engine with the reader's part serves a batch; its step, for `play`."""
    engine: InferenceEngine = build(
        model=small_model(num_layers),
        dtype=torch.float32,
        cache=CacheConfig(block_size=8, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=NUM_SLOTS, prefill_max_batch_size=NUM_SLOTS),
        **parts,
    )
    prompts = steady_prompts(NUM_REQUESTS, LENGTHS)
    with steady_decode(engine, prompts, warmup_steps=1), torch.inference_mode():
        yield device_step_of(engine)


def play(device_step: LanedDeviceStep, batch_size: int) -> tuple[Tensor, Tensor, list[StreamLaunch]]:
    """What the layers of an engine's next step make in simulated streams, [B, E], what those of a step make
    that is not cut, and the launches, in order. Raises BrokenContract for a race."""
    slots, longest = device_step.slots, longest_possible(device_step)
    network, manager = device_step.network, device_step.attention.kv_manager
    slot_mapping = slots.slot_mapping[:batch_size]
    whole = FusedDeviceStep(slots, network, AttendAndWrite(manager, paged_attention_append_plain), PLAIN)
    expected = whole.through_layers(slot_mapping, longest)
    streams = SimulatedStreams()
    step = type(device_step)(slots, network, [_lane(streams, manager, i) for i in range(NUM_LANES)])
    step.least_rows = LEAST_ROWS
    with replaced(step, "streams", lambda _: streams), streams:
        streams.launch("the step before", (), (slots.context_lens, slots.last_token_ids))
        made = step.through_layers(slot_mapping, longest)
        F.layer_norm(made, made.shape[-1:])  # the step's next kernel
    return made, expected, streams.launches[1:]


def _lane(streams: SimulatedStreams, manager: KVBlockManager, number: int) -> Lane:
    """A lane of plain twins, as launches, with a workspace that is only noted."""
    attention = partial(paged_attention_append_plain)
    attention.workspace = torch.zeros(1)  # which the kernel would write
    streams.workspaces[storage(attention.workspace)] = f"attention's workspace of lane {number}"
    return Lane(
        AttendAndWrite(manager, streams.as_kernel("attention", attention)),
        FusedKernels(*map(streams.as_kernel, PLAIN._fields, PLAIN)),
    )


# --- a layer's kernels as recorded: how long each one's bytes take, and how long it waits --------------


class KernelTimes(NamedTuple):
    """Microseconds that a kernel's weights take at the memory's rate, its keys and values, and its waits."""

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
    network = on_paper()
    layer = network.decoder_weights().layers[0]
    values = network.config.kv_values_per_token // len(network.decoder_weights().layers)
    cache_bytes = step.batch_size * (step.context_len + 1) * values * network.dtype.itemsize
    kernels = (
        ("norm_linear", layer.qkv),
        ("attn_append", ()),
        ("linear_residual", layer.attention_out),
        ("norm_linear", layer.mlp_in),
        ("linear_residual", layer.mlp_out),
    )
    times = []
    for name, linear in kernels:  # by a part of the name that a GPU reports
        us = next(kernel.us / kernel.count for kernel in step.kernels if name in kernel.name)
        weights_us = 1e6 * sum(t.nbytes for t in linear if t is not None) / bandwidth
        cache_us = 0.0 if linear else 1e6 * cache_bytes / bandwidth
        waits_us = max(0.0, us - weights_us - cache_us)
        times.append(KernelTimes(name if linear else "attention", weights_us, cache_us, waits_us))
    return times


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


def layers_of(build: Build, layer: Sequence[KernelTimes], **parts: Part) -> list[Task]:
    """The layers of a step as an engine with the reader's part launches them, with the times of a recorded
    layer.

    build: `here.build`. Keys and values take their rows' share of the time; weights take all of it in each
    half, as if the second found none of them in the GPU's cache. What stands around the layers takes no time.
    """
    with steps_to_play(build, NUM_LAYERS, **parts) as step:
        *_, launches = play(step, NUM_ROWS)
    names = {times.name for times in layer}
    in_stream = {"main": cycle(layer), "side": cycle(layer)}
    tasks = []
    for launch in launches:
        is_timed = launch.kernel in names
        times = next(in_stream[launch.stream]) if is_timed else KernelTimes(launch.kernel, 0.0, 0.0, 0.0)
        bytes_us = times.weights_us + times.cache_us * launch.rows / NUM_ROWS
        after = tuple(number - 1 for number in launch.waits_for if number > 0)  # the step before was 0
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


# --- two launches of a split-K product at once, in one workspace or two --------------------------------

PARTS = ((1, 2), (10, 20))  # what the two programs of each launch add up
RIGHT = tuple(map(sum, PARTS))


def told(num_workspaces: int) -> str:
    """In how many of the orders in which a GPU may run their programs both launches make the right sum, and
    the wrong outcome that most of the others have.

    num_workspaces: 1, which both share, or 2.
    """
    orders = sorted(set(permutations((0, 1, 2, 3) * 2)))
    found = Counter(outcome(order, num_workspaces) for order in orders)
    total = sum(found.values())
    text = f"{found.pop(RIGHT, 0):,} of {total:,} orders right"
    if not found:
        return text
    ((wrong, times),) = found.most_common(1)
    return f"{text}; {times:,} make {wrong[0]} and {wrong[1]}, not {RIGHT[0]} and {RIGHT[1]}"


def outcome(order: Sequence[int], num_workspaces: int) -> tuple[int | None, ...]:
    """What both launches make if their four programs act in this order; None for a launch in which no program
    took itself for the last one. A program first leaves its part. Then it counts itself, and if it is the
    last to arrive, it adds up all parts and sets the counter back."""
    workspaces = [[0, 0] for _ in range(num_workspaces)]
    arrived = [0] * num_workspaces
    made: list[int | None] = [None, None]
    have_left: set[int] = set()
    for program in order:
        launch, number = divmod(program, 2)
        its = launch % num_workspaces
        if program not in have_left:
            have_left.add(program)
            workspaces[its][number] = PARTS[launch][number]
            continue
        arrived[its] += 1
        if arrived[its] == len(PARTS[launch]):
            made[launch], arrived[its] = sum(workspaces[its]), 0
    return tuple(made)
