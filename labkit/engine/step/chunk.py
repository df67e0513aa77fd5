"""A chunk of prompt tokens on the device: sent in one go, computed, and its first tokens drawn (rung 13).

T rows of the chunk, P prompts, M blocks of a prompt, E embedding, H heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.request import Request
from labkit.engine.sampling import Draws, logprobs_asked, sample_greedy
from labkit.engine.scheduler import Joining
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.samplers import Sampler
from labkit.engine.step.scored import ScoredCopy, scored
from labkit.engine.step.side_stream import NO_SIDE, NoSide, SideStream
from labkit.engine.step.staging import NUM_BUFFERS, PinnedStaging, PinnedTokens, TokenCopy
from labkit.kernels import HeadTransform, PackedRows, SamplingState
from labkit.kvcache import KVBlockManager, PrefixEntry
from labkit.model import Network
from labkit.ranges import named_range

if TYPE_CHECKING:
    from labkit.engine.step.graphed_chunk import GraphedChunkStep


@dataclass(eq=False, repr=False)
class PackedAttention:
    """Stores a chunk's keys and values in the cache, then attends over it: called once per layer.

    attention, kv_append: `packed_attention_triton` and `kv_append_packed_triton`, or their plain twins.
    """

    watch_points = ("attention", "kv_append")

    kv_manager: KVBlockManager
    attention: Callable[[Tensor, Tensor, Tensor, PackedRows, HeadTransform | None], Tensor]
    kv_append: Callable[[Tensor, Tensor, Tensor, Tensor, PackedRows, HeadTransform | None], None]

    def begin(self, rows: PackedRows) -> None:
        """Prepare for a chunk, before its first layer."""
        self.rows = rows

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (heads[0].transpose(0, 1) for heads in (query, key, value))
        return self.attend_rows(layer_idx, query, key, value).transpose(0, 1)[None]  # [1, H, T, D]

    def attend_rows(
        self,
        layer_idx: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        transform: HeadTransform | None = None,
        rows: PackedRows | None = None,
    ) -> Tensor:
        """Store the chunk's keys and values in one layer, and attend.

        query: [T, H, D], as is the result; key, value: [T, G, D]. transform: of queries and keys, before all.
        rows: whose the queries are, if they are not all of the chunk's; made before the first layer, because
        attention reads them before it waits.
        """
        k_cache, v_cache = self.kv_manager.k_cache[layer_idx], self.kv_manager.v_cache[layer_idx]
        self.kv_append(k_cache, v_cache, key, value, self.rows, transform)
        return self.attention(query, k_cache, v_cache, rows or self.rows, transform)


class ChunkStep:
    """Forward and K/V write of a chunk, launched kernel by kernel.

    No number is read back to decide what runs next, so a CUDA graph can capture it, if its kernels do so.
    """

    def __init__(
        self, network: Network, attention: PackedAttention, layout: ChunkLayout, head: Tensor
    ) -> None:
        """head: as `padded_head` makes it."""
        self.network = network
        self.attention = attention
        self.layout = layout
        self._vocab_size = network.config.vocab_size
        self._head = head

    def num_rows(self, num_tokens: int) -> int:
        """Rows that a chunk of so many tokens is computed with, pads included: there are none."""
        return num_tokens

    def room(self, num_rows: int) -> Tensor:
        """Where on the device the numbers of a chunk of so many rows go: int64 [size]."""
        return torch.empty(self.layout.size(num_rows), dtype=torch.int64, device=self.network.device)

    def __call__(self, numbers: Tensor) -> Tensor:
        """Logits [P, V] after each prompt's last row. numbers: as `ChunkLayout.pack` makes them, in their
        `room`."""
        inputs = self.layout.split(numbers)
        self.attention.begin(self.layout.rows_of(inputs))
        with named_range("labkit.prefill.forward"):
            hidden = self.network(inputs.token_ids[None], inputs.positions[None], self.attention)
            logits = self.network.ranks.gather(F.linear(hidden[0, inputs.last_rows], self._head))
            return logits[:, : self._vocab_size]


class PromptSlots(NamedTuple):
    """What the prompts of a chunk draw with, by place: tensors [P], in the form that slots have."""

    sampling_state: SamplingState
    last_token_ids: Tensor


class FirstTokens(NamedTuple):
    """What the sampler asks of a decode step: here no slot is advanced, for none of the requests has one.

    likeliest: the likeliest token ids [P], where they are known.
    """

    slots: PromptSlots
    likeliest: Tensor | None = None

    def take_likeliest(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
        """The likeliest token ids [P] of logits [P, V], -1 where they are not finite."""
        return sample_greedy(logits) if self.likeliest is None else self.likeliest

    def advance(self, token_ids: Tensor, slot_mapping: Tensor) -> Tensor:
        """The token ids."""
        return token_ids


class FirstTokenSampler:
    """Samples the first tokens of a chunk's prompts, without a wait: those of `sample_requests`."""

    watch_points = ("sample",)

    def __init__(self, sampler: Sampler, layout: ChunkLayout, device: torch.device) -> None:
        """sampler: of the decode step. layout: of the chunks."""
        self._sampler = sampler
        self._layout = layout
        self._places = torch.arange(layout.max_prompts, device=device)
        self._last_token_ids = torch.zeros_like(self._places)  # samplers write there; nobody reads it

    def warm_up(self, logits: Tensor, numbers: Tensor) -> None:
        """Draw once in each way, with arguments as `sample` takes them: then no kernel is compiled in the
        middle of serving."""
        for draws in self._sampler.families:
            self.sample(logits, numbers, draws)

    def sample(
        self, logits: Tensor, numbers: Tensor, draws: Draws, likeliest: Tensor | None = None
    ) -> Tensor:
        """A token id for each row of logits [P, V], -1 where they are not finite: int64 [P].

        numbers: of the chunk, on the device, as its layout has them. draws: what the finished prompts ask for
        together. likeliest: the likeliest token ids [P], where they are known; they may be written over.
        """
        if draws is Draws.NONE:
            return sample_greedy(logits) if likeliest is None else likeliest
        state = self._layout.split(numbers).sampling_state
        step = FirstTokens(PromptSlots(state, self._last_token_ids), likeliest)
        known = draws if draws in self._sampler.families else Draws.FILTERED
        return self._sampler(step, logits, self._places[: len(logits)], known)


@dataclass(eq=False, repr=False)
class ChunkInFlight:
    """A chunk that was launched, and whose first tokens were not read yet.

    requests, joining: the prompts in it, each with its state at the launch; it may have left since.
    finished: by place, those whose last token it has. last_logits: [P, V]. num_tokens: computed in it.
    tokens: of all prompts; None if none is finished.
    """

    watch_points = ("read",)

    requests: list[Request]
    joining: list[Joining]
    finished: list[int]
    num_tokens: int
    last_logits: Tensor
    tokens: TokenCopy | ScoredCopy | None

    def read(self) -> Sequence[int | None]:
        """Wait for the first tokens [P], of which only those of finished prompts mean something; None where
        logits are not finite numbers."""
        token_ids = self.tokens.read() if self.tokens is not None else []
        return [None if token_id < 0 else token_id for token_id in token_ids]


class ResidentChunkStep:
    """A chunk's way to the device and back: one packed send, the forward, the draw, one copy of tokens.

    A chunk waits for what was launched before it, which may write to blocks that were free by then and are
    its own now. What is launched later runs at the same time, if it is not behind `side.join`.
    """

    watch_points = ("launch", "device_step")

    def __init__(
        self,
        device_step: "ChunkStep | GraphedChunkStep",
        sampler: FirstTokenSampler,
        kv_manager: KVBlockManager,
        max_tokens: int,
        side: SideStream | NoSide = NO_SIDE,
    ) -> None:
        """max_tokens: of a chunk at most. side: what a chunk is launched in."""
        device, layout = kv_manager.k_cache.device, device_step.layout
        self.side = side
        self.device_step = device_step
        self.sampler = sampler
        self.layout = layout
        self.max_tokens = max_tokens
        self.max_prompts = layout.max_prompts
        self.staging = PinnedStaging(layout.size(device_step.num_rows(max_tokens)), device)
        self.pinned_tokens = PinnedTokens(layout.max_prompts, device, NUM_BUFFERS + 1)  # one is due
        self.num_rows, self._room = device_step.num_rows, device_step.room

    def launch(
        self, chunk: PackedChunk, joining: Mapping[Request, Joining], finished: list[int]
    ) -> ChunkInFlight:
        """Launch a chunk of these prompts, whose sessions have room for it, and behind it the copy of the
        first tokens of those that it finishes."""
        num_tokens = len(chunk.token_ids)
        num_rows = self.num_rows(num_tokens) if num_tokens else 0
        numbers = self.layout.pack(chunk, joining, num_rows)
        with self.side:
            there = numbers[: self.layout.size_up_to(num_rows, len(joining))]
            sent = self.staging.send(there, self._room(num_rows))
            logits, likeliest = self._logits(sent, joining, num_tokens)
            requests = list(joining)
            tokens = self._first_tokens(sent, requests, finished, logits, likeliest)
        return ChunkInFlight(requests, list(joining.values()), finished, num_tokens, logits, tokens)

    def _first_tokens(
        self,
        sent: Tensor,
        requests: list[Request],
        finished: list[int],
        logits: Tensor,
        likeliest: Tensor | None,
    ) -> TokenCopy | ScoredCopy | None:
        """The copy of the prompts' first tokens, drawn from logits [P, V]; None if none is finished."""
        if not finished:
            return None
        asked = {p: n for p, n in logprobs_asked(r.params for r in requests).items() if p in finished}
        draws = Draws.of(requests[p].params for p in finished)
        token_ids = self.sampler.sample(logits, sent, draws, likeliest)
        return scored(self.pinned_tokens.start_copy(token_ids), logits, token_ids, asked)

    def _logits(
        self, sent: Tensor, joining: Mapping[Request, Joining], num_tokens: int
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [P, V] after each prompt: its prefix's if that is the whole prompt, else computed; and the
        likeliest tokens [P], where a graph has found them already."""
        known = {
            p: self.side.use(each.prefix.last_logits)
            for p, each in enumerate(joining.values())
            if isinstance(each.prefix, PrefixEntry) and each.prefix.num_tokens == len(each.token_ids)
        }
        if not num_tokens:
            return torch.stack([known[p] for p in range(len(joining))]), None
        # A copy: they may be kept with a prompt, and the next replay of a graph writes over its own.
        logits = self.device_step(sent)[: len(joining)].clone()
        if known:
            for p, row in known.items():  # each by itself: a list of places would be sent, and waited for
                logits[p] = row
            return logits, None
        likeliest = getattr(self.device_step, "likeliest", None)
        return logits, None if likeliest is None else likeliest[: len(joining)]
