"""Tensors that lie behind each other in one, so that any of their numbers are written in one go."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.engine.step.staging import PinnedStaging

ALIGNMENT = 64  # words, of a tensor's beginning: a kernel is compiled anew for a pointer that is less so


class SlotMemory:
    """Tensors of int32 and of int64 in one tensor of `words`, which are 32 bits.

    What is `put` is gathered on the host. `write` sends it in one copy, each word with its place, and one
    kernel brings all to their places.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[Sequence[int], torch.dtype]], max_words: int, device: torch.device
    ) -> None:
        """shapes: of each tensor, by name, with its dtype: int32 or int64. max_words: put at most for one
        write."""
        sizes = {name: prod(shape) * dtype.itemsize // 4 for name, (shape, dtype) in shapes.items()}
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())]).tolist()
        self.words = torch.zeros(starts[-1], dtype=torch.int32, device=device)
        self._tensors: dict[str, Tensor] = {}
        self._places_of: dict[str, np.ndarray] = {}  # of each tensor's words, the last dimension
        for start, (name, (shape, dtype)) in zip(starts, shapes.items(), strict=False):
            end = start + sizes[name]
            self._tensors[name] = self.words[start:end].view(dtype).view(*shape)
            self._places_of[name] = np.arange(start, end).reshape(*shape, -1)
        self.staging = PinnedStaging(packed_size(max_words), device)
        self.discard()

    def __getitem__(self, name: str) -> Tensor:
        """One of the tensors, zeros at first."""
        return self._tensors[name]

    def put(self, name: str, where: Any, numbers: np.ndarray) -> None:
        """Have `tensor[where] = numbers` done by the next `write`, for one of the tensors.

        where: an index of NumPy's, with no place twice. numbers: of the tensor's dtype, in the shape of
        `tensor[where]`. What was put to the same tensor before is written first.
        """
        if name in self._put:
            self.write()
        self._put[name] = self._places_of[name][where].ravel(), numbers.ravel().view(np.int32)

    def write(self) -> None:
        """Send what was put since the last time, if there is anything."""
        if not self._put:
            return
        places, words = zip(*self._put.values(), strict=True)
        self.discard()
        count = sum(map(len, places))
        packed = np.empty(packed_size(count), dtype=np.int64)
        np.concatenate(places, out=packed[:count])
        np.concatenate(words, out=packed[count:].view(np.int32)[:count])
        sent = self.staging.send(torch.from_numpy(packed))
        self.words.scatter_(0, sent[:count], sent[count:].view(torch.int32)[:count])

    def discard(self) -> None:
        """Forget what was put and is not written."""
        self._put: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # by name: places, and a word for each


def packed_size(num_words: int) -> int:
    """int64 numbers that travel for so many words: a place each, and the words two by two."""
    return num_words + -(-num_words // 2)
