"""The processes that share a model, as torchrun starts them: their sums, their messages, their faults."""

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks import quoted
from labkit.engine.device import pick_device
from labkit.errors import OptionError, RankError
from labkit.model.ranks import PeerSum, Ranks
from labkit.parallel.peers import PeerMemorySum, can_share

# The second is its name before torch 2.13.
gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

SLICE = timedelta(milliseconds=200)  # between two looks whether another rank has failed
IDLE = timedelta(hours=1)  # between two looks of a rank that is told nothing: of a fault it is told
FAULT, WAITS, NEWS = "labkit/fault", "labkit/waits", "labkit/news"  # keys in the store that all ranks see


class TorchRanks(Ranks):
    """The ranks of a torch.distributed job: NCCL between GPUs, gloo between processes on CPUs.

    No wait for another rank's part of a step is longer than `timeout` seconds, and what a rank fails of is
    raised by all of them, as RankError. Only `hear` waits for a message however long it takes. After an error
    nothing more can be computed together: end the processes.
    """

    def __init__(self, device: str | None = None, timeout: float = 60.0) -> None:
        """Join the job that torchrun has started; all ranks do so together.

        device: "cpu" or "cuda", of which each rank takes its own. None: the GPUs where there are any.
        Raises OptionError outside of torchrun, and RankError if others do not come in time.
        """
        if "RANK" not in os.environ:
            raise OptionError(
                "this is one process alone: start it by torchrun --nproc-per-node N, or use InferenceEngine"
            )
        kind = pick_device(device).type
        self.device = pick_device(f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else "cpu")
        if kind == "cuda":
            torch.cuda.set_device(self.device)
        self.timeout = timeout
        try:
            dist.init_process_group(
                "nccl" if kind == "cuda" else "gloo",
                timeout=timedelta(seconds=2 * timeout),  # later than ours, which says who is late
                device_id=self.device if kind == "cuda" else None,
            )
            self._store = dist.TCPStore(
                os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), wait_for_workers=False
            )
        except dist.DistError as error:
            raise RankError(f"the ranks did not find each other: {quoted(error)}") from error
        self._store.set_timeout(IDLE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        atexit.register(end_process, 1)  # of a rank that does not `leave`
        self._is_gloo = kind == "cpu"
        self.has_peer_memory = kind == "cuda" and can_share(self.rank, self.size)
        self._num_steps = 0
        self.broken: list[object] = []  # engines whose graphs may wait for ever: to free one waits for it

    def __deepcopy__(self, _memo: object) -> "TorchRanks":
        return self  # a network's copy is of the same ranks

    # --- tensors -------------------------------------------------------------------------------------

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's x, in x itself: the same bits on every rank."""
        self._end(dist.all_reduce(x, async_op=self._is_gloo))
        return x

    def gather(self, x: Tensor) -> Tensor:
        B, V = x.shape
        every = torch.empty(self.size * B, V, dtype=x.dtype, device=x.device)
        self._end(gather_into(every, x.contiguous(), async_op=self._is_gloo))
        return every.view(self.size, B, V).transpose(0, 1).reshape(B, self.size * V)

    def peer_sum(self, width: int, dtype: torch.dtype) -> PeerSum | None:
        """Sums from one GPU's memory to another's, where GPUs reach that."""
        if self._is_gloo or not self.has_peer_memory:
            return None
        return PeerMemorySum(self.rank, self.size, width, dtype, self.device)

    def least(self, number: int) -> int:
        least = torch.tensor(number, device=self.device)
        self._end(dist.all_reduce(least, dist.ReduceOp.MIN, async_op=self._is_gloo))
        return int(least)

    def _end(self, work: "dist.Work | None") -> None:
        """Wait for work on the CPU. (A GPU's is waited for where its results are read.)"""
        if work is None:
            return

        def ends() -> bool:
            try:
                work.wait(SLICE)
            except RuntimeError as error:
                if work.is_completed():
                    raise RankError(self._fail(f"{self._late()} has gone: {quoted(error)}")) from error
                return False
            return True

        self._wait(ends)

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Wait for an event of this GPU, whose work may wait for other ranks."""

        def ends() -> bool:
            end = time.monotonic() + SLICE.total_seconds()
            while not event.query():
                if time.monotonic() > end:
                    return False
            return True

        self._wait(ends)

    def _wait(self, ends: Callable[[], bool]) -> None:
        """Wait until a slice of the wait `ends` it. Raises RankError when another rank has failed or the time
        is over, in which a pause of the whole machine counts as a slice or two."""
        waited, since = 0.0, time.monotonic()
        while not ends():
            self._store.set(f"{WAITS}/{self.rank}", str(self._num_steps))
            self.check()
            now = time.monotonic()
            waited, since = waited + min(now - since, 2 * SLICE.total_seconds()), now
            if waited > self.timeout:
                raise RankError(self._fail(f"{self._late()} did not come within {self.timeout:g} seconds"))

    # --- messages ------------------------------------------------------------------------------------

    def tell(self, message: str) -> None:
        """Send the other ranks a message, which is not empty, without waiting for them."""
        for rank in range(self.size):
            if rank != self.rank:
                self._store.queue_push(f"{NEWS}/{rank}", message.encode())

    def hear(self) -> str:
        """The next message to this rank, however long it takes. Raises RankError when another has failed."""
        while True:
            with contextlib.suppress(dist.DistStoreError):  # nothing in all that time
                if message := self._store.queue_pop(f"{NEWS}/{self.rank}").decode():
                    return message
            self.check()

    # --- faults --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A block in which all ranks do the same: an error of one becomes RankError on all of them."""
        self._num_steps += 1
        try:
            yield
        except RankError:
            raise
        except BaseException as error:
            fault = self._fail(f"rank {self.rank} failed: {type(error).__name__}: {quoted(error)}")
            if isinstance(error, Exception):
                raise RankError(fault) from error
            raise

    def check(self) -> None:
        """Raises RankError, naming the rank, if one has failed."""
        if self._store.check([FAULT]):
            raise RankError(self._store.get(FAULT).decode())

    def _fail(self, fault: str) -> str:
        """Tell all ranks of a fault, and wake those that wait for news; the first fault that was told of."""
        first = self._store.compare_set(FAULT, "", fault).decode()
        self.tell("")
        return first

    def _late(self) -> str:
        """The ranks that do not wait in this step as this one does, or all others if they do."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        keys = [f"{WAITS}/{rank}" for rank in others]
        steps = [int(self._store.get(key)) if self._store.check([key]) else 0 for key in keys]
        late = [rank for rank, step in zip(others, steps, strict=True) if step < self._num_steps] or others
        return f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"

    def leave(self) -> None:
        """End this process with status 0, when all ranks have come here. Without it, a rank ends with 1.

        Nothing is torn down: communicators wait for graphs that hold them, and graphs for sums that no other
        rank will join.
        """
        self.least(0)
        end_process(0)


def end_process(status: int) -> None:
    """End this process here and now, as soon as what it has printed is out."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
