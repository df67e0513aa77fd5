"""A chunk's forward as CUDA graphs, one for each of some numbers of rows (rung 13)."""

from typing import Any

import torch
from torch import Tensor

from labkit.engine.sampling import Draws, sample_greedy
from labkit.engine.step.chunk import ChunkStep
from labkit.engine.step.graphed import batch_buckets, cuda_captures
from labkit.kernels.triton_runtime import is_hopper

FEWEST_ROWS = 16  # of a graph: fewer take as long
MOST_ROWS = 2048  # of a graph
MOST_ROWS_ON_HOPPER = 8192  # where graphs of 4,096 were measured to be slower

# A graph, and what a replay leaves: the logits [P, V], and the likeliest tokens [P].
CapturedChunk = tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]


def most_rows(device: torch.device) -> int:
    """Rows of a graph at most, and so of a chunk."""
    return MOST_ROWS_ON_HOPPER if is_hopper(device) else MOST_ROWS


def row_buckets(max_tokens: int) -> list[int]:
    """The numbers of rows that have a graph, rising, for chunks of so many tokens at most."""
    return [size for size in batch_buckets(max(max_tokens, FEWEST_ROWS)) if size >= FEWEST_ROWS]


class GraphedChunkStep:
    """A `ChunkStep` captured in CUDA graphs. A chunk takes the next larger one and pads it.

    All are captured when the engine is made, into a memory pool of their own. They read their numbers from
    one place: `room`.
    """

    def __init__(self, chunk_step: ChunkStep, max_tokens: int, device: torch.device) -> None:
        """max_tokens: of a chunk at most."""
        self.chunk_step = chunk_step
        self.layout, self.attention = chunk_step.layout, chunk_step.attention
        self.buckets = row_buckets(max_tokens)
        self.numbers = torch.zeros(self.layout.size(self.buckets[-1]), dtype=torch.int64, device=device)
        self.graphs: dict[int, CapturedChunk] = {}
        # The likeliest tokens [P] of the last call's logits, -1 where they are not finite.
        self.likeliest: Tensor | None = None

        def forward(num_rows: int, *_: object) -> tuple[Tensor, Tensor]:
            # All numbers are 0 by now: every row is a pad, for which nothing is stored.
            logits = chunk_step(self.numbers[: self.layout.size(num_rows)])
            return logits, sample_greedy(logits)

        run: Any = forward  # it is captured as a `DeviceStep` is
        with cuda_captures(run) as capture:
            for bucket in self.buckets[::-1]:
                captured: Any = capture(bucket, Draws.NONE)
                self.graphs[bucket] = captured

    def num_rows(self, num_tokens: int) -> int:
        """Rows that a chunk of so many tokens is computed with, pads included."""
        return next(size for size in self.buckets if size >= num_tokens)

    def room(self, num_rows: int) -> Tensor:
        """Where on the device the numbers of a chunk of so many rows go: int64 [size]."""
        return self.numbers[: self.layout.size(num_rows)]

    def __call__(self, numbers: Tensor) -> Tensor:
        """Logits [P, V] after each prompt's last row: those of `ChunkStep`, valid until the next call.

        numbers: as `ChunkLayout.pack` makes them, in their `room`.
        """
        graph, (logits, self.likeliest) = self.graphs[self.layout.num_rows(numbers)]
        graph.replay()
        return logits
