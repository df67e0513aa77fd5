"""Numbers in flight between host and GPU, in pinned memory."""

from collections.abc import Callable
from operator import methodcaller
from weakref import ref

import torch
from torch import Tensor

# A decode step sends once at most, behind a step that may still run, and no more chunks are in flight than
# there are buffers: there is always one to write. (A step that verifies drafts sends each new text by itself,
# and may have to wait.)
NUM_BUFFERS = 4


class PinnedStaging:
    """Copies host numbers to a device without waiting for it.

    Pinned buffers take turns. Before one is written again, its last copy is waited for, which is over by
    then unless as many copies are under way as there are buffers.
    """

    watch_points = ("send",)

    def __init__(self, size: int, device: torch.device) -> None:
        """size: numbers sent at most in one go."""
        # What brings a buffer's numbers to a target.
        self.copy: Callable[[Tensor, Tensor], None] = by_copy_engine
        self._device = device
        self.buffers = [pinned_numbers(size, device) for _ in range(NUM_BUFFERS)]
        self._copied: list[torch.cuda.Event | None] = [None] * NUM_BUFFERS
        self._turn = 0

    def send(self, numbers: Tensor, target: Tensor | None = None) -> Tensor:
        """int64 [n] on the host -> the first n of target, int64 on the device, which is returned whole; None:
        a new tensor [n]. (If `copy` is another's, a target as it takes it.)"""
        turn = (self._turn + 1) % NUM_BUFFERS
        if (copied := self._copied[turn]) is not None:
            copied.synchronize()
        buffer = self.buffers[turn][: len(numbers)]
        buffer.copy_(numbers)
        if target is None:
            target = torch.empty(len(numbers), dtype=torch.int64, device=self._device)
        self.copy(buffer, target)
        self._copied[turn] = event_behind(self._device, copied)
        self._turn = turn  # only now: when a copy that failed to start is over cannot be known
        return target


class PinnedTokens:
    """Copies a step's token ids to the host, which waits for them only when it reads them.

    A pinned buffer belongs to its copy until that is read or gone: they take turns, and one is added for each
    copy that a failed step has left behind.
    """

    watch_points = ("start_copy",)

    def __init__(self, size: int, device: torch.device, num_buffers: int = 2) -> None:
        """size: tokens copied at most in one go. num_buffers: copies that are not read at most."""
        self.copy = by_copy_engine  # from rung 11 on a kernel, on a GPU
        self._size = size
        self._device = device
        self.buffers = [pinned_numbers(size, device) for _ in range(num_buffers)]
        # The last copy to each buffer, and the event behind it.
        self._copies: list[ref[TokenCopy] | None] = [None] * num_buffers
        self._copied: list[torch.cuda.Event | None] = [None] * num_buffers
        self.wait: Callable[[torch.cuda.Event], None] = methodcaller("synchronize")

    def start_copy(self, token_ids: Tensor) -> "TokenCopy":
        """Start the copy of int64 [n]."""
        turn = self._free_buffer()
        buffer = self.buffers[turn][: len(token_ids)]
        self.copy(token_ids, buffer)
        self._copied[turn] = event_behind(self._device, self._copied[turn])
        copy = TokenCopy(buffer, self._copied[turn], self.wait)
        self._copies[turn] = ref(copy)
        return copy

    def _free_buffer(self) -> int:
        for turn, last in enumerate(self._copies):
            copy = None if last is None else last()
            if copy is None or copy.is_read:
                return turn
        self.buffers.append(pinned_numbers(self._size, self._device))
        self._copies.append(None)
        self._copied.append(None)
        return len(self._copies) - 1


class TokenCopy:
    """Token ids in flight to the host."""

    watch_points = ("read",)

    def __init__(
        self, buffer: Tensor, event: torch.cuda.Event | None, wait: Callable[[torch.cuda.Event], None]
    ) -> None:
        """wait: waits for the event."""
        self._buffer = buffer
        self._event = event
        self._wait = wait
        self.is_read = False

    def read(self) -> list[int]:
        """Wait for them: the one point of a step where the host waits for the GPU. Read them once."""
        if self._event is not None:
            self._wait(self._event)
        token_ids: list[int] = self._buffer.tolist()
        self.is_read = True  # the buffer is free for another step's
        return token_ids


def by_copy_engine(source: Tensor, target: Tensor) -> None:
    """Start a copy of int64 [n] between pinned memory and a GPU's, to the first n of the target."""
    target = target[: len(source)] if len(target) > len(source) else target
    target.copy_(source, non_blocking=True)


def scatter_words_plain(packed: Tensor, words: Tensor) -> None:
    """Have `words[places] = numbers` done on the device of the words: the plain twin of
    `scatter_words_triton`, which says what `packed` is."""
    n = len(packed) * 2 // 3
    sent = packed.to(words.device, non_blocking=True)
    words.scatter_(0, sent[:n], sent[n:].view(torch.int32)[:n])


def event_behind(device: torch.device, event: torch.cuda.Event | None) -> torch.cuda.Event | None:
    """An event that is over when all is that was launched to a GPU's current stream; None for a CPU.

    event: one that nobody waits for any more, to be used again; None: a new one, which takes longer.
    """
    if device.type != "cuda":
        return None
    event = event or torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))  # PyTorch takes longer if it must ask which device it is
    return event


def pinned_numbers(size: int, device: torch.device) -> Tensor:
    """Room for int64 numbers in memory that a GPU can copy from and to by itself."""
    return torch.empty(size, dtype=torch.int64, pin_memory=device.type == "cuda")
