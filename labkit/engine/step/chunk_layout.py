"""How a chunk's numbers lie in memory, so that all of them are sent in one go."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.request import Request
from labkit.engine.scheduler import Joining
from labkit.kernels import PackedRows, SamplingState
from labkit.kernels.distribution import OFF, pack_states, unpack_states


class ChunkNumbers(NamedTuple):
    """The numbers of a chunk: parts of one int64 array or tensor, fractions by their bits.

    starts: [P + 1]. context_lens, last_rows: [P]. packed_states: what each prompt's first token is drawn
    with, in columns as long as P or one longer. token_ids, positions: [T]. block_tables: [P * M].
    """

    starts: Any
    context_lens: Any
    last_rows: Any
    packed_states: Any
    token_ids: Any
    positions: Any
    block_tables: Any

    @property
    def states(self) -> Any:
        """`packed_states` as [columns, P]."""
        return self.packed_states.reshape(len(OFF), -1)[:, : len(self.last_rows)]

    @property
    def sampling_state(self) -> SamplingState:
        """What the prompts' first tokens are drawn with, tensors [P]."""
        return unpack_states(self.states)


class ChunkLayout:
    """Where in a chunk's numbers which ones are: for at most `max_prompts` prompts of `max_blocks` blocks.

    Each part begins at a multiple of 16 bytes: a kernel is compiled anew for a pointer that does not. The
    tables are the largest part, and come last, so that those of prompts that are not there need not be sent.
    """

    def __init__(self, max_prompts: int, max_blocks: int) -> None:
        self.max_prompts = max_prompts
        self.max_blocks = max_blocks
        states = len(OFF) * (max_prompts + max_prompts % 2)
        self._sizes = (max_prompts + 1, max_prompts, max_prompts, states)  # of the parts before the rows'
        self._start_of_rows = sum(size + size % 2 for size in self._sizes)

    def size(self, num_rows: int) -> int:
        """Numbers of a chunk of so many rows: one more at the end tells an odd number from the next."""
        return self.size_up_to(num_rows, self.max_prompts) + num_rows % 2

    def size_up_to(self, num_rows: int, num_prompts: int) -> int:
        """Numbers of a chunk of so many rows, up to the tables of so many prompts."""
        return self._start_of_rows + 2 * (num_rows + num_rows % 2) + num_prompts * self.max_blocks

    def num_rows(self, numbers: Any) -> int:
        """Rows of a chunk of these numbers."""
        rest = len(numbers) - self.size(0)
        return rest // 2 - rest % 2

    def split(self, numbers: Any) -> ChunkNumbers:
        """The parts of a one-dimensional array or tensor of `size`, without a copy."""
        num_rows = self.num_rows(numbers)
        parts, start = [], 0
        for size in (*self._sizes, num_rows, num_rows, self.max_prompts * self.max_blocks):
            parts.append(numbers[start : start + size])
            start += size + size % 2
        return ChunkNumbers(*parts)

    def rows_of(self, numbers: ChunkNumbers) -> PackedRows:
        """Whose tokens the rows are, as the kernels take it."""
        tables = numbers.block_tables.view(self.max_prompts, self.max_blocks)
        return PackedRows(numbers.starts.int(), numbers.context_lens.int(), tables.int())

    def pack(self, chunk: PackedChunk, joining: Mapping[Request, Joining], num_rows: int) -> Tensor:
        """The numbers of a chunk, on the host: int64 [size].

        num_rows: with pads behind the tokens, which are token 0 at position 0. Prompts that are not there
        have no row and no block.
        """
        numbers = np.zeros(self.size(num_rows), dtype=np.int64)
        parts, num_prompts, num_tokens = self.split(numbers), len(joining), len(chunk.token_ids)
        parts.token_ids[:num_tokens] = np.fromiter(chunk.token_ids, np.int64, num_tokens)
        parts.starts[: num_prompts + 1] = chunk.starts
        parts.starts[num_prompts + 1 :] = num_tokens
        parts.context_lens[:num_prompts] = chunk.context_lens
        # `chunk.positions`, which has as many Python numbers as tokens:
        offsets, counts = parts.context_lens - parts.starts[:-1], parts.starts[1:] - parts.starts[:-1]
        parts.positions[:num_tokens] = np.arange(num_tokens) + np.repeat(offsets, counts)
        np.maximum(parts.starts[1:] - 1, 0, out=parts.last_rows)
        parts.states[:, :num_prompts] = pack_states([request.sampling_state for request in joining])
        tables = parts.block_tables.reshape(self.max_prompts, self.max_blocks)
        for row, each in zip(tables, joining.values(), strict=False):
            (block_ids,) = each.session.block_ids_per_layer  # one table for all layers
            row[: len(block_ids)] = block_ids
        return torch.from_numpy(numbers)
