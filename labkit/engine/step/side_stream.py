"""A stream beside that of the decode steps, in which a chunk of prompts runs at the same time (rung 13)."""

import torch
from torch import Tensor


class SideStream:
    """`with side:` launches go to a stream of their own, behind all that was launched before.

    What is launched outside runs at the same time, until `join`.
    """

    def __init__(self, device: torch.device) -> None:
        """device: a GPU, with its index."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._fork, self._end = torch.cuda.Event(), torch.cuda.Event()

    def __enter__(self) -> None:
        self._main = torch.cuda.current_stream(self._device)
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
        """Have what is launched from now on wait for what was launched inside."""
        self._end.record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._end)


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
