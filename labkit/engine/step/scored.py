"""Tokens with their log probabilities: computed behind a step from the logits that it had.

A batch in which nobody asks for them runs nothing of all this.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine.sampling import RowLogprobs
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.staging import TokenCopy


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
