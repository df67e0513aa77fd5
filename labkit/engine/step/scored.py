"""A step whose tokens come with their log probabilities: computed behind it from the logits that it had.

A batch in which nobody asks for them runs nothing of all this.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine.sampling import Draws, RowLogprobs
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.staging import TokenCopy
from labkit.errors import OptionError

LogitsLeft = Callable[[int, Draws], Tensor | None]  # of a batch size and its draws: see `GraphedStep`


class ScoredCopy(NamedTuple):
    """Tokens in flight to the host with their log probabilities: read as a `TokenCopy` is."""

    tokens: TokenCopy
    logprobs: RowLogprobs

    def read(self) -> list[int]:
        """Wait for them. Read them once."""
        return self.logprobs.with_tokens(self.tokens.read())


def scored(
    tokens: TokenCopy, logits: Tensor, token_ids: Tensor, asked: Mapping[int, int]
) -> TokenCopy | ScoredCopy:
    """A copy of token_ids [B] in flight, with log probabilities from logits [B, V] for rows that ask."""
    return ScoredCopy(tokens, RowLogprobs(logits, token_ids, asked)) if asked else tokens


@contextmanager
def logits_told(step: DeviceStep, tell: Callable[[Tensor], object]) -> Iterator[None]:
    """Inside the block, `tell` is called with the logits [B, V] from which the step is about to sample."""
    before, step.tell_logits = step.tell_logits, tell
    try:
        yield
    finally:
        step.tell_logits = before


class ScoredStep:
    """A step as it is launched for a batch in which somebody asks: its tokens, and its logits beside them."""

    def __init__(self, kernels: DeviceStep, launched: Callable[..., Tensor]) -> None:
        """kernels: the step kernel by kernel. launched: what launches it for other batches, such as graphs,
        whose `logits_left` says where a replay has left the logits. If it is somebody's own and does not say
        that, kernels are launched here."""
        self._kernels = kernels
        self._logits_left: LogitsLeft | None = getattr(launched, "logits_left", None)
        self._is_own = launched is not kernels and self._logits_left is None

    def __call__(
        self, launch: Callable[..., Tensor], batch_size: int, longest: int, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """The token ids [B] of `launch`, and the logits [B, V] that they were sampled from.

        launch: `launched`, or what a watcher has put in its place. Raises OptionError for kernels of
        somebody's own that sample from logits by themselves.
        """
        told: list[Tensor] = []
        with logits_told(self._kernels, told.append):
            token_ids = (self._kernels if self._is_own else launch)(batch_size, longest, draws)
        logits: Tensor | None = None
        if told:
            logits = told[-1][:batch_size]
        elif self._logits_left is not None:
            logits = self._logits_left(batch_size, draws)
        if logits is None:
            raise OptionError(
                f"nobody can ask for logprobs here: {type(self._kernels).__name__} samples tokens without "
                "take_likeliest or draw_and_advance, so its logits are not known"
            )
        return token_ids, logits


class GraphMemory:
    """Where in a graph's memory a tensor lies, which nobody else writes to: it is there from a replay of that
    graph to the next one of any that shares the memory.

    It keeps no memory: the graphs go on sharing what they shared.
    """

    def __init__(self, tensor: Tensor) -> None:
        """tensor: made while the graph was captured, on the GPU."""
        size = tensor.element_size()
        self._dtype = tensor.dtype
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"<i{size}",  # of any dtype: the protocol does not know bfloat16
            "data": (tensor.data_ptr(), False),
        }

    def tensor(self) -> Tensor:
        """The tensor, without a copy."""
        return torch.as_tensor(self).view(self._dtype)
