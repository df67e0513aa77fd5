"""A stream beside that of the decode steps, in which a chunk of prompts runs at the same time (rung 13)."""

import weakref

import torch
from torch import Tensor


class SideStream:
    """`with side:` launches go to a stream of their own, behind all that was launched before.

    What is launched outside runs at the same time. What may write to memory that the work inside was given,
    or that is given to others, must be launched behind a `join`.
    """

    def __init__(self, device: torch.device) -> None:
        """device: a GPU, with its index."""
        self._device = device
        # PyTorch hands out the same few streams again and again, but others for each priority. Captures have
        # those of 0: one that another engine captures in must not be this one.
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._main = torch.cuda.current_stream(device)
        self._fork, self._end = torch.cuda.Event(), torch.cuda.Event()
        # An engine's memory may go while a chunk of it runs.
        weakref.finalize(self, self._main.wait_stream, self._stream).atexit = False

    def __enter__(self) -> None:
        current = torch.cuda.current_stream(self._device)
        if current != self._stream:  # as it is where an interrupt came in the middle of an exit
            self._main = current
        self._fork.record(self._main)
        self._stream.wait_event(self._fork)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._main)

    def use(self, tensor: Tensor) -> Tensor:
        """A tensor that was made outside, and may be let go of while work inside still reads it."""
        tensor.record_stream(self._stream)
        return tensor

    def join(self) -> None:
        """Have what is launched outside from now on wait for what was launched inside."""
        self._end.record(self._stream)
        self._main.wait_event(self._end)


class NoSide:
    """In place of a `SideStream` where nothing runs at the same time."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def use(self, tensor: Tensor) -> Tensor:
        """The tensor."""
        return tensor

    def join(self) -> None:
        """Nothing is beside."""


NO_SIDE = NoSide()
