"""Lesson 11: simulated streams, a step in them, and two products at once."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import PLAIN, FusedDeviceStep, FusedKernels
from labkit.engine.step.lanes import NUM_LANES, Lane, LanedDeviceStep
from labkit.kernels import paged_attention_append_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, small_model
from labkit.learn.lesson_10.clock import orders
from labkit.model import LanguageModel
from labkit.watch.capture import longest_possible
from labkit.watch.launches import device_step_of
from labkit.watch.operators import OperatorMode, storage, tensors_of
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

# --- streams on any machine, which refuse a kernel that does not wait for what it reads ----------------

Seen = dict[str, int]  # by stream, how many of its launches have ended for sure


@dataclass
class SimulatedStream:
    """A queue of launches, and what each of them waits for. It has the methods of `torch.cuda.Stream` by
    which streams wait for each other."""

    name: str
    seen: Seen = field(default_factory=lambda: defaultdict(int))

    def wait_stream(self, other: "SimulatedStream") -> None:
        """What is launched here from now on waits for all that was launched there until now."""
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        """Raise BrokenContract: here the host would wait, and no graph can hold that."""
        raise BrokenContract(
            "streams wait for each other, and the host waits for neither: `synchronize` makes the host wait, "
            "which no CUDA graph can hold. `a.wait_stream(b)` makes a stream wait."
        )

    def record_event(self) -> Seen:
        """A point after all that was launched here until now."""
        return dict(self.seen)

    def wait_event(self, event: Seen) -> None:
        """What is launched here from now on waits for the point of an event."""
        for stream, number in event.items():
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
    gelu: bool = False

    def is_behind(self, other: "StreamLaunch") -> bool:
        """Whether it begins for sure after the other has ended."""
        return self.waits_for.get(other.stream, 0) >= other.number

    def __str__(self) -> str:
        return f"{self.kernel} in the {self.stream} stream"


class SimulatedStreams(OperatorMode):
    """A step's streams, and whether each kernel waits for what it reads or overwrites.

    Inside its `with`, operators and functions from `as_kernel` are launches of the current stream. They do
    their work at once, in the order of the launches, which a GPU need not keep: so a race is told by what
    the streams wait for, and not by the numbers that come out. Raises BrokenContract for one.
    """

    are_captured = True

    def __init__(self, names: Mapping[int, str]) -> None:
        """names: of memory, by its address."""
        super().__init__()
        self.names = dict(names)
        self.main = self._main = SimulatedStream("main")
        self.side = SimulatedStream("side")
        self.launches: list[StreamLaunch] = []
        self._written: dict[int, StreamLaunch] = {}
        self._read: dict[int, list[StreamLaunch]] = defaultdict(list)
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
        self.launch(name, tensors_of((args, kwargs)), writes, gelu=bool(kwargs.get("gelu")))

    def launch(self, kernel: str, reads: tuple, writes: tuple | list, gelu: bool = False) -> None:
        """Note a launch of the current stream, and refuse a race."""
        stream = self.main
        waits_for = dict(stream.seen)
        stream.seen[stream.name] += 1
        rows = len(writes[0]) if writes and writes[0].dim() else 0
        this = StreamLaunch(kernel, stream.name, stream.seen[stream.name], waits_for, reads, rows, gelu)
        for tensor in (*reads, *writes):
            self._check_read(this, tensor)
        for tensor in writes:
            self._check_write(this, tensor)
        for tensor in reads:
            self._read[storage(tensor)].append(this)
        self._written |= {storage(tensor): this for tensor in writes}
        self._alive += [*reads, *writes]
        self.launches.append(this)

    def _check_read(self, this: StreamLaunch, tensor: Tensor) -> None:
        before = self._written.get(storage(tensor))
        if before is None or this.is_behind(before):
            return
        what = self._called(tensor, before)
        if "workspace" in what:
            raise BrokenContract(
                f"launches that run at once have workspaces of their own: {this} uses {what}, while {before} "
                "is still at work there. They would count each other's parts. Each half has its own lane."
            )
        raise BrokenContract(
            f"a kernel waits for what it reads: {this} reads {what}, which {before} writes, and "
            "nothing makes it wait. It may get the values from before. A `wait_stream` between the two is "
            "missing, or it is in the wrong place."
        )

    def _check_write(self, this: StreamLaunch, tensor: Tensor) -> None:
        for before in self._read[storage(tensor)]:
            if not this.is_behind(before):
                raise BrokenContract(
                    f"a kernel overwrites nothing that is still read: {this} writes "
                    f"{self._called(tensor, before)} while {before} may still read it."
                )

    def _called(self, tensor: Tensor, maker: StreamLaunch) -> str:
        known = self.names.get(storage(tensor))
        return known or f"a tensor {list(tensor.shape)}, made by {maker.kernel}"


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

    Raises BrokenContract for a part that is no `LanedDeviceStep`.
    """
    engine: InferenceEngine = build(
        model or small_model(),
        dtype=torch.float32,
        cache=CacheConfig(block_size=8, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=NUM_SLOTS, prefill_max_batch_size=NUM_SLOTS),
    )
    step = device_step_of(engine)
    if not isinstance(step, LanedDeviceStep):
        raise BrokenContract(
            f"a large batch goes through the layers in two halves: {type(step).__name__} has no lanes. Your "
            "class has LanedDeviceStep, or InHalves, as its base."
        )
    prompts = steady_prompts(NUM_REQUESTS, LENGTHS)
    with steady_decode(engine, prompts, warmup_steps=1), torch.inference_mode():
        yield StepPlayer(step)


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
        names = {
            storage(getattr(slots, name)): f"slots.{name}" for name in ("context_lens", "last_token_ids")
        }
        streams = SimulatedStreams(names)
        lanes = [self._lane(streams, i) for i in range(NUM_LANES)]
        step = type(self.step)(slots, self.step.network, lanes)
        step.least_rows = LEAST_ROWS
        with replaced(step, "streams", lambda _: streams), streams:
            streams.launch("the step before", (), (slots.context_lens, slots.last_token_ids))
            made = step.through_layers(slot_mapping, longest)
            if isinstance(made, Tensor):
                F.layer_norm(made, made.shape[-1:])  # the step's next kernel
        return SimulatedStep(made, expected, slot_mapping, slots.padding_slot, streams.launches[1:])

    def _lane(self, streams: SimulatedStreams, number: int) -> Lane:
        """A lane of plain twins, as launches, with workspaces that are only noted."""
        split_k, splits = torch.zeros(1), torch.zeros(1)
        streams.names[storage(split_k)] = f"the split-K workspace of lane {number}"
        streams.names[storage(splits)] = f"attention's workspace of lane {number}"
        residual, attention = partial(PLAIN.linear_residual), partial(paged_attention_append_plain)
        residual.workspace, attention.workspace = split_k, splits  # which the kernels would write
        kernels = PLAIN._replace(linear_residual=residual)._asdict()
        return Lane(
            AttendAndWrite(self.kv_manager, streams.as_kernel("attention", attention)),
            FusedKernels(**{name: streams.as_kernel(name, kernel) for name, kernel in kernels.items()}),
        )


# --- two launches of a split-K product at once, in one workspace or two --------------------------------

NUM_PARTS = 2  # of the one number that each launch adds up
PARTS = {"first half": (1, 2), "second half": (10, 20)}  # what the programs of each launch add


@dataclass
class Workspace:
    """Where the programs of a launch leave their parts, and count who has arrived; 0 between launches."""

    parts: list[int] = field(default_factory=lambda: [0] * NUM_PARTS)
    arrived: int = 0


RIGHT = (sum(PARTS["first half"]), sum(PARTS["second half"]))


def programs(name: str, workspace: Workspace, made: dict[str, int]) -> list[list[Callable[[], None]]]:
    """The programs of a launch, each as its two actions: leave a part; count, and if it is the last to
    arrive, add up all parts and set the counter back."""

    def leave(number: int) -> None:
        workspace.parts[number] = PARTS[name][number]

    def count() -> None:
        workspace.arrived += 1
        if workspace.arrived == NUM_PARTS:
            made[name] = sum(workspace.parts)
            workspace.arrived = 0

    return [[lambda n=n: leave(n), count] for n in range(NUM_PARTS)]


def outcomes(num_workspaces: int) -> Counter[tuple[int | None, ...]]:
    """What both launches make at once, in how many of the orders in which a GPU may run their programs; None
    where no program took itself for the last one.

    num_workspaces: 1, which both share, or 2.
    """
    found: Counter[tuple[int | None, ...]] = Counter()
    for order in orders([[program] * 2 for program in range(2 * NUM_PARTS)]):  # two actions of each
        workspaces = [Workspace() for _ in range(num_workspaces)]
        made: dict[str, int] = {}
        pairs = zip(PARTS, (workspaces[0], workspaces[-1]), strict=True)
        running = [iter(actions) for name, space in pairs for actions in programs(name, space, made)]
        for program in order:
            next(running[program])()
        found[tuple(map(made.get, PARTS))] += 1
    return found


def told(num_workspaces: int) -> str:
    """How many orders are right, and the wrong outcome that most of the others have."""
    found = outcomes(num_workspaces)
    total = sum(found.values())
    text = f"{found.pop(RIGHT, 0):,} of {total:,} orders right"
    if not found:
        return text
    ((wrong, times),) = found.most_common(1)
    return f"{text}; {times:,} make {wrong[0]} and {wrong[1]}, not {RIGHT[0]} and {RIGHT[1]}"
