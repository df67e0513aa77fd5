"""Numbers in flight between host and GPU, in pinned memory."""

import torch
from torch import Tensor

NUM_BUFFERS = 4  # a step in which a request joins sends three times, behind a step that may still run


class PinnedStaging:
    """Copies host numbers to a device without waiting for it.

    Pinned buffers take turns. Before one is written again, its last copy is waited for, which is over by
    then unless as many copies are under way as there are buffers.
    """

    watch_points = ("send",)

    def __init__(self, size: int, device: torch.device) -> None:
        """size: numbers sent at most in one go."""
        self._device = device
        self._is_cuda = device.type == "cuda"
        self.buffers = [pinned_numbers(size, self._is_cuda) for _ in range(NUM_BUFFERS)]
        self._copied: list[torch.cuda.Event | None] = [None] * NUM_BUFFERS
        self._turn = 0

    def send(self, numbers: Tensor) -> Tensor:
        """int64 [n] on the host -> a new tensor [n] on the device."""
        turn = (self._turn + 1) % NUM_BUFFERS
        if (copied := self._copied[turn]) is not None:
            copied.synchronize()
        buffer = self.buffers[turn][: len(numbers)]
        buffer.copy_(numbers)
        sent = torch.empty(len(numbers), dtype=torch.int64, device=self._device)
        sent.copy_(buffer, non_blocking=True)
        if self._is_cuda:
            event = torch.cuda.Event()
            event.record()
            self._copied[turn] = event
        self._turn = turn  # only now: when a copy that failed to start is over cannot be known
        return sent


class PinnedTokens:
    """Copies a step's token ids to the host, which waits for them only when it reads them.

    Two pinned buffers take turns.
    """

    watch_points = ("start_copy",)

    def __init__(self, size: int, device: torch.device) -> None:
        """size: tokens copied at most in one go."""
        self._is_cuda = device.type == "cuda"
        self.buffers = [pinned_numbers(size, self._is_cuda) for _ in range(2)]
        self._turn = 0

    def start_copy(self, token_ids: Tensor) -> "TokenCopy":
        """Start the copy of int64 [n]. The one before the last must have been read."""
        turn = 1 - self._turn
        buffer = self.buffers[turn][: len(token_ids)]
        buffer.copy_(token_ids, non_blocking=True)
        event = None
        if self._is_cuda:
            event = torch.cuda.Event()
            event.record()
        copy = TokenCopy(buffer, event)
        self._turn = turn  # only now: a copy that failed must not make the next one write over unread tokens
        return copy


class TokenCopy:
    """Token ids in flight to the host."""

    watch_points = ("read",)

    def __init__(self, buffer: Tensor, event: torch.cuda.Event | None) -> None:
        self._buffer = buffer
        self._event = event

    def read(self) -> list[int]:
        """Wait for them: the one point of a step where the host waits for the GPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._buffer.tolist()


def pinned_numbers(size: int, is_cuda: bool) -> Tensor:
    """Room for int64 numbers in memory that a GPU can copy from and to by itself."""
    return torch.empty(size, dtype=torch.int64, pin_memory=is_cuda)
