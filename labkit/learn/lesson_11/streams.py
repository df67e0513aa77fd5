"""Lesson 11: streams on any machine, which refuse a kernel that does not wait for what it reads."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch._ops import OpOverload

from labkit.learn.exercise import BrokenContract
from labkit.watch.operators import OperatorMode, storage, tensors_of

Seen = dict[str, int]  # by stream, how many of its launches have ended for sure


@dataclass
class PlayedStream:
    """A queue of launches, and what each of them waits for. It has the methods of `torch.cuda.Stream` by
    which streams wait for each other."""

    name: str
    seen: Seen = field(default_factory=lambda: defaultdict(int))

    def wait_stream(self, other: "PlayedStream") -> None:
        """What is launched here from now on waits for all that was launched there until now."""
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        """Raise BrokenContract: here the host would wait, and no graph can hold that."""
        raise BrokenContract(
            "streams wait for each other, and the host for neither: `synchronize` makes the host wait, which "
            "no CUDA graph can hold. `a.wait_stream(b)` makes a stream wait."
        )

    def record_event(self) -> Seen:
        """A point behind all that was launched here until now."""
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


@dataclass(frozen=True)
class PlainKernel:
    """A kernel's plain twin, with the workspace that the kernel would write; None for one without."""

    function: Callable
    workspace: Tensor | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


class PlayedStreams(OperatorMode):
    """A step's streams, and whether each kernel waits for what it reads or overwrites.

    Inside its `with`, operators and functions from `as_kernel` are launches of the current stream. They do
    their work at once, in the order of the launches, which a GPU need not keep: so a race is told by what
    the streams wait for, and not by the numbers that come out. Raises BrokenContract for one.
    """

    are_captured = True

    def __init__(self, names: Mapping[int, str], rows_apart: tuple[Tensor, ...] = ()) -> None:
        """names: of memory, by its address. rows_apart: tensors whose rows the halves may write at once."""
        super().__init__()
        self.names = dict(names)
        self.main = self._main = PlayedStream("main")
        self.side = PlayedStream("side")
        self.launches: list[StreamLaunch] = []
        self._apart = {storage(tensor) for tensor in rows_apart}
        self._written: dict[int, StreamLaunch] = {}
        self._read: dict[int, list[StreamLaunch]] = defaultdict(list)
        self._alive: list[Tensor] = []  # so that no address is given twice

    @contextmanager
    def launching_in(self, stream: PlayedStream) -> Iterator[None]:
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
        if before is None or storage(tensor) in self._apart or this.is_behind(before):
            return
        what = self._called(tensor, before)
        if "workspace" in what:
            raise BrokenContract(
                f"what two launches write at once, each has for itself: {this} uses {what}, while {before} "
                "is still at work there. They would count each other's parts. Each half has its own lane."
            )
        raise BrokenContract(
            f"a kernel waits for what it reads: {this} reads {what}, which {before} writes, without a wait "
            f"for that. It may read what was there before. A `wait_stream` between the two is missing, or is "
            "at another place."
        )

    def _check_write(self, this: StreamLaunch, tensor: Tensor) -> None:
        for before in self._read[storage(tensor)]:
            if storage(tensor) not in self._apart and not this.is_behind(before):
                raise BrokenContract(
                    f"a kernel overwrites nothing that is still read: {this} writes "
                    f"{self._called(tensor, before)} while {before} may still read it."
                )

    def _called(self, tensor: Tensor, maker: StreamLaunch) -> str:
        known = self.names.get(storage(tensor))
        return known or f"a tensor {list(tensor.shape)}, made by {maker.kernel}"
