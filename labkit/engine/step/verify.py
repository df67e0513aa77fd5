"""A step that verifies drafts, all on the device: several tokens of a request, if its text foretells them.

B requests, K drafts of each at most, R = B * (K + 1) rows, S slots, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine.sampling import Draws, sample_greedy
from labkit.engine.step.chunk import FirstTokens, PromptSlots
from labkit.engine.step.fused_chunk import ChunkLayers
from labkit.engine.step.graphed import GraphedStep, batch_buckets
from labkit.engine.step.samplers import Sampler
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import (
    PackedRows,
    accept_drafts_plain,
    accept_drafts_triton,
    advance_verified_plain,
    advance_verified_triton,
    greedy_advance_triton,
    ngram_drafts_plain,
    ngram_drafts_triton,
    verify_rows_plain,
    verify_rows_triton,
)
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.kernels.verify_rows import VerifyRows
from labkit.ranges import named_range

MOST_DRAFTS = 7  # of a request
MOST_ROWS = 32  # of a step: a full batch has no room for drafts


def drafts_each(batch_size: int) -> int:
    """How many drafts each request of a batch may have; 0 for a batch that has none."""
    return max(0, min(MOST_DRAFTS, MOST_ROWS // batch_size - 1))


class Likeliest:
    """The likeliest token of each row, by a greedy step's two kernels, for slots that nobody has."""

    def __init__(self, device: torch.device) -> None:
        self._rows = torch.arange(MOST_ROWS, device=device)
        self._token_ids = torch.zeros_like(self._rows)
        self._lens = torch.full_like(self._rows, -1, dtype=torch.int32)  # of slots that do not grow

    def __call__(self, logits: Tensor) -> Tensor:
        """Token ids [R] for logits [R, V]; NO_TOKEN for a row that is not finite."""
        return greedy_advance_triton(logits, self._rows[: len(logits)], self._token_ids, self._lens)


class VerifyKernels(NamedTuple):
    """What a step that verifies does around its forward, in Triton kernels or in plain PyTorch."""

    find_drafts: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
    rows: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], VerifyRows]
    accept: Callable[[Tensor, Tensor], Tensor]
    advance: Callable[..., Tensor]
    likeliest: Callable[[Tensor], Tensor]

    @classmethod
    def on_triton(cls, device: torch.device) -> "VerifyKernels":
        """In Triton kernels."""
        return cls(
            ngram_drafts_triton,
            verify_rows_triton,
            accept_drafts_triton,
            advance_verified_triton,
            Likeliest(device),
        )


PLAIN = VerifyKernels(
    ngram_drafts_plain, verify_rows_plain, accept_drafts_plain, advance_verified_plain, sample_greedy
)


class VerifyStep:
    """Drafts from the requests' own texts, the forward of all rows, and each row's token; a draft is accepted
    if it is the token that its row in front has made, and all drafts before it were accepted.

    That token is the likeliest one or is drawn with the request's own random number for its place, as it
    would be without drafts. So the tokens are the same; and drawn ones come from the model's distribution.
    texts: [S, W] int32, the tokens of each slot's request. limits: [B], drafts of each request at most. ends:
    [B], tokens that it may have in the cache: when it has them it is done, and has no row.
    """

    watch_points = ("find_drafts",)
    tell_logits = None  # to nobody: see `ReadVerified`

    def __init__(
        self, layers: ChunkLayers, slots: DeviceSlots, sampler: Sampler, kernels: VerifyKernels, width: int
    ) -> None:
        """width: tokens of the longest text."""
        device = slots.slot_mapping.device
        self.layers, self.slots, self.sampler, self.kernels = layers, slots, sampler, kernels
        self.find_drafts = kernels.find_drafts
        # A step writes what it has made and does not keep behind the text, too.
        self.texts = torch.zeros(
            len(slots.last_token_ids), width + MOST_DRAFTS + 1, dtype=torch.int32, device=device
        )
        self.bounds = torch.zeros(2, len(slots.slot_mapping), dtype=torch.int64, device=device)
        self.limits, self.ends = self.bounds

    @property
    def families(self) -> tuple[Draws, ...]:
        """The kinds of batches that the step runs in different ways."""
        return self.sampler.families

    def __call__(self, batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        """Tokens [B, K + 2]: those made, then NOT_MADE, and in the last column how many drafts there were.
        NO_TOKEN is made where logits are not finite. Each slot advances by what is made."""
        slots, num_drafts, kernels = self.slots, drafts_each(batch_size), self.kernels
        slot_mapping, ends = slots.slot_mapping[:batch_size], self.ends[:batch_size]
        with named_range("labkit.draft"):
            limits = self.limits[:batch_size]
            drafts = self.find_drafts(self.texts, slots.context_lens, slot_mapping, limits, num_drafts)
        rows = kernels.rows(drafts, slot_mapping, slots.last_token_ids, slots.context_lens, ends)
        made = self._made(rows, slot_mapping, draws)[rows.place]
        num_accepted = self.accepted(made, rows.drafts)
        advanced = (slots.last_token_ids, slots.context_lens, slots.sampling_state.draws, self.texts)
        return kernels.advance(made, rows.drafts, num_accepted, slot_mapping, ends, *advanced)

    def accepted(self, made: Tensor, drafts: Tensor) -> Tensor:
        """How many drafts [B] are accepted: those that were made [B, K + 1], up to the first that was not."""
        return self.kernels.accept(made, drafts)

    def _made(self, rows: VerifyRows, slot_mapping: Tensor, draws: Draws) -> Tensor:
        """The token [R] that each row has made."""
        slots, num_rows = self.slots, len(rows.token_ids)
        if not slot_mapping.is_cuda:
            num_rows = int(rows.starts[-1])  # here pads cost as much as tokens, and the number is at hand
        tables = slots.block_tables[0, slot_mapping]
        self.layers.begin_chunk(PackedRows(rows.starts, rows.context_lens, tables))
        with named_range("labkit.verify.forward"):
            logits = self.layers.chunk_logits(rows.token_ids[:num_rows], rows.positions[:num_rows])
        with named_range("labkit.sample"):
            if draws == Draws.NONE:
                token_ids = self.kernels.likeliest(logits)
            else:
                state = slots.sampling_state.at(slot_mapping[rows.requests[:num_rows]])
                state = state._replace(draws=state.draws + rows.ranks[:num_rows])
                all_rows = torch.arange(num_rows, device=slot_mapping.device)
                places = PromptSlots(state, torch.zeros_like(all_rows))
                token_ids = self.sampler(FirstTokens(places), logits, all_rows, draws)
        return F.pad(token_ids, (0, len(rows.token_ids) - num_rows), value=NO_TOKEN)


class GraphedVerifyStep(GraphedStep):
    """A `VerifyStep` as CUDA graphs, one for each bucket of batches that draft and family.

    A replay makes tokens [B, K + 2], where K is that of the bucket.
    """

    @staticmethod
    def sizes(max_batch_size: int) -> list[int]:
        """The batch sizes that have a graph, rising."""
        return [size for size in batch_buckets(max_batch_size) if drafts_each(size)]
