"""A chunk's forward as CUDA graphs, one for each of some numbers of rows (rung 13)."""

from typing import Any

import torch
from torch import Tensor

from labkit.engine.sampling import Draws, sample_greedy
from labkit.engine.step.chunk import ChunkStep
from labkit.engine.step.graphed import batch_buckets, cuda_captures
from labkit.kernels.triton_runtime import is_hopper
from labkit.model import Network

FEWEST_ROWS = 16  # of a graph: fewer take as long
MOST_ROWS = 2048  # of a graph: with more, the launches are a small part of the time
MOST_ROWS_OF_SMALL = 8192  # where a Hopper GPU has all of a model whose layers have few weights:
SMALL_LAYER = 12_000_000  # it multiplies so many with 8,192 rows in about the time of their launches

# A graph, and what a replay leaves: the logits [P, V], and the likeliest tokens [P].
CapturedChunk = tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]


def most_rows(network: Network, device: torch.device) -> int:
    """Rows of a graph at most: the same on all ranks, whose parts of a layer may differ in size."""
    weights = network.config.num_matrix_weights // network.config.num_layers
    is_small = network.ranks.size == 1 and weights <= SMALL_LAYER and is_hopper(device)
    return MOST_ROWS_OF_SMALL if is_small else MOST_ROWS


def row_buckets(max_tokens: int, most: int) -> list[int]:
    """The numbers of rows that have a graph, rising, for chunks of so many tokens and graphs of so many rows
    at most."""
    most = max(min(max_tokens, most), FEWEST_ROWS)
    return [size for size in batch_buckets(most) if size >= FEWEST_ROWS]


class GraphedChunkStep:
    """A `ChunkStep` captured in CUDA graphs. A chunk takes the next larger one and pads it; one that is
    larger than all is launched kernel by kernel.

    All are captured when the engine is made, into a memory pool of their own. They read their numbers from
    one place: `room`.
    """

    def __init__(self, chunk_step: ChunkStep, max_tokens: int, device: torch.device) -> None:
        """max_tokens: of a chunk at most."""
        self.chunk_step = chunk_step
        self.layout, self.attention = chunk_step.layout, chunk_step.attention
        self.buckets = row_buckets(max_tokens, most_rows(chunk_step.network, device))
        self.numbers = torch.zeros(self.layout.size(self.buckets[-1]), dtype=torch.int64, device=device)
        self.graphs: dict[int, CapturedChunk] = {}
        self._likeliest: Tensor | None = None  # that the last call has left

        def forward(num_rows: int, *_: object) -> tuple[Tensor, Tensor]:
            # All numbers are 0 by now: every row is a pad, for which nothing is stored.
            logits = chunk_step(self.numbers[: self.layout.size(num_rows)])
            return logits, sample_greedy(logits)

        run: Any = forward  # it is captured as a `DeviceStep` is
        with cuda_captures(run) as capture:
            for bucket in self.buckets[::-1]:
                captured: Any = capture(bucket, Draws.NONE)
                self.graphs[bucket] = captured
        # What a longer chunk launches is compiled now, and not in serving. (Several ranks would have to sum.)
        if max_tokens > self.buckets[-1] and chunk_step.network.ranks.size == 1:
            numbers = torch.zeros(self.layout.size(self.buckets[-1] + 1), dtype=torch.int64, device=device)
            with torch.inference_mode():
                chunk_step(numbers)

    def num_rows(self, num_tokens: int) -> int:
        """Rows that a chunk of so many tokens is computed with, pads included."""
        return next((size for size in self.buckets if size >= num_tokens), num_tokens)

    def room(self, num_rows: int) -> Tensor:
        """Where on the device the numbers of a chunk of so many rows go: int64 [size]."""
        if num_rows not in self.graphs:
            return self.chunk_step.room(num_rows)
        return self.numbers[: self.layout.size(num_rows)]

    def __call__(self, numbers: Tensor) -> Tensor:
        """Logits [P, V] after each prompt's last row: those of `ChunkStep`, valid until the next call.

        numbers: as `ChunkLayout.pack` makes them, in their `room`.
        """
        captured = self.graphs.get(self.layout.num_rows(numbers))
        if captured is None:
            self._likeliest = None
            return self.chunk_step(numbers)
        graph, (logits, self._likeliest) = captured
        graph.replay()
        return logits

    def likeliest_left(self) -> Tensor | None:
        """The likeliest tokens [P] of the last call's logits, -1 where they are not finite, if a graph has
        found them; valid until the next call."""
        return self._likeliest
