"""A step that verifies drafts, all on the device: several tokens of a request, if its text foretells them.

B requests, K drafts of each at most, R = B * (K + 1) rows, S slots, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine.request import Request, RunningRequests
from labkit.engine.sampling import Draws, sample_greedy
from labkit.engine.session import InferenceSession
from labkit.engine.step.first_tokens import FirstTokens, PromptSlots
from labkit.engine.step.fused_chunk import ChunkLayers
from labkit.engine.step.graphed import CapturedStep, batch_buckets, cuda_captures
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.samplers import Sampler
from labkit.engine.step.slots import DeviceSlots
from labkit.engine.step.staging import PinnedStaging, PinnedTokens
from labkit.kernels import PackedRows
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.kernels.ngram_drafts import NO_DRAFT
from labkit.ranges import named_range

MOST_DRAFTS = 7  # of a request
MOST_ROWS = 32  # of a step: a full batch has no room for drafts
NOT_MADE = -2  # behind the tokens that a row has made

FindDrafts = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]  # as `ngram_drafts_plain`


def drafts_each(batch_size: int) -> int:
    """How many drafts each request of a batch may have; 0 for a batch that has none."""
    return max(0, min(MOST_DRAFTS, MOST_ROWS // batch_size - 1))


class VerifyRows(NamedTuple):
    """The rows of a step: each request's last token and its drafts behind each other, and then pads.

    place: [B, K + 1], which row a request's token j is in. token_ids, positions, requests, ranks: [R], of
    each row, with the request's place in the batch and j. starts: [B + 1], as `PackedRows` has it.
    """

    place: Tensor
    token_ids: Tensor
    positions: Tensor
    requests: Tensor
    ranks: Tensor
    starts: Tensor

    @classmethod
    def of(cls, inputs: Tensor, context_lens: Tensor) -> "VerifyRows":
        """inputs: [B, K + 1], NO_DRAFT behind a request's tokens. context_lens: [B], tokens in the cache."""
        is_row = inputs >= 0
        ends = is_row.sum(dim=1).cumsum(dim=0)
        starts = F.pad(ends, (1, 0))
        rank = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
        behind = ends[-1] + (~is_row).flatten().cumsum(dim=0).view_as(rank) - 1
        place = torch.where(is_row, starts[:-1, None] + rank, behind)
        request = torch.arange(len(inputs), device=inputs.device)[:, None].expand_as(inputs)
        positions = context_lens[:, None] + rank

        def in_rows(column: Tensor) -> Tensor:
            """[B, K + 1] as [R], in the rows' order; 0 in pads."""
            return torch.zeros_like(place).flatten().scatter_(0, place.flatten(), (column * is_row).flatten())

        return cls(place, in_rows(inputs), in_rows(positions), in_rows(request), in_rows(rank), starts)


class VerifyStep:
    """Drafts from the requests' own texts, the forward of all rows, and each row's token; a draft is accepted
    if it is the token that its row in front has made, and all drafts before it were accepted.

    That token is the likeliest one or is drawn with the request's own random number for its place, as it
    would be without drafts. So the tokens are the same; and drawn ones come from the model's distribution.
    texts: [S, W] int32, the tokens of each slot's request. limits: [B], drafts of each request at most.
    """

    watch_points = ("find_drafts",)

    def __init__(
        self, layers: ChunkLayers, slots: DeviceSlots, sampler: Sampler, find_drafts: FindDrafts, width: int
    ) -> None:
        """width: tokens of the longest text."""
        device = slots.slot_mapping.device
        self.layers, self.slots, self.sampler, self.find_drafts = layers, slots, sampler, find_drafts
        # A step writes what it has made and does not keep behind the text, too.
        self.texts = torch.zeros(
            len(slots.last_token_ids), width + MOST_DRAFTS + 1, dtype=torch.int32, device=device
        )
        self.limits = torch.zeros_like(slots.slot_mapping)

    @property
    def families(self) -> tuple[Draws, ...]:
        """The kinds of batches that the step runs in different ways."""
        return self.sampler.families

    def __call__(self, batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        """Tokens [B, K + 2]: those made, then NOT_MADE, and in the last column how many drafts there were.
        NO_TOKEN is made where logits are not finite. Each slot advances by what is made."""
        slots, num_drafts = self.slots, drafts_each(batch_size)
        slot_mapping = slots.slot_mapping[:batch_size]
        lens = slots.context_lens[slot_mapping].long()
        with named_range("labkit.draft"):
            limits = self.limits[:batch_size]
            drafts = self.find_drafts(self.texts, slots.context_lens, slot_mapping, limits, num_drafts)
        last = slots.last_token_ids[slot_mapping].masked_fill(lens < 0, NO_DRAFT)
        rows = VerifyRows.of(torch.cat([last[:, None], drafts], dim=1), lens)
        made = self._made(rows, slot_mapping, draws)[rows.place]
        num_accepted = self.accepted(made, drafts)
        self._advance(slot_mapping, lens, made, num_accepted)
        is_made = torch.arange(num_drafts + 1, device=made.device) <= num_accepted[:, None]
        num_drafted = (drafts >= 0).sum(dim=1, keepdim=True)
        return torch.cat([made.masked_fill(~is_made, NOT_MADE), num_drafted], dim=1)

    def accepted(self, made: Tensor, drafts: Tensor) -> Tensor:
        """How many drafts [B] are accepted: those that were made [B, K + 1], up to the first that was not."""
        is_right = (made[:, :-1] == drafts) & (drafts >= 0)
        return is_right.long().cumprod(dim=1).sum(dim=1)

    def _made(self, rows: VerifyRows, slot_mapping: Tensor, draws: Draws) -> Tensor:
        """The token [R] that each row has made."""
        slots, num_rows = self.slots, len(rows.token_ids)
        if not slot_mapping.is_cuda:
            num_rows = int(rows.starts[-1])  # here pads cost as much as tokens, and the number is at hand
        context_lens = slots.context_lens[slot_mapping].clamp(min=0)
        tables = slots.block_tables[0, slot_mapping]
        self.layers.begin_chunk(PackedRows(rows.starts.int(), context_lens, tables))
        all_rows = torch.arange(num_rows, device=slot_mapping.device)
        with named_range("labkit.verify.forward"):
            logits = self.layers.chunk_logits(rows.token_ids[:num_rows], rows.positions[:num_rows], all_rows)
        with named_range("labkit.sample"):
            if draws == Draws.NONE:
                token_ids = sample_greedy(logits)
            else:
                state = slots.sampling_state.at(slot_mapping[rows.requests[:num_rows]])
                state = state._replace(draws=state.draws + rows.ranks[:num_rows])
                places = PromptSlots(state, torch.zeros_like(all_rows))
                token_ids = self.sampler(FirstTokens(places), logits, all_rows, draws)
        return F.pad(token_ids, (0, len(rows.token_ids) - num_rows), value=NO_TOKEN)

    def _advance(self, slot_mapping: Tensor, lens: Tensor, made: Tensor, num_accepted: Tensor) -> None:
        """Bring the slots to where the tokens [B] that were accepted, and the one behind them, have led."""
        slots = self.slots
        num_made = num_accepted + 1
        last = made.gather(1, num_accepted[:, None])[:, 0]
        slots.last_token_ids[slot_mapping] = last.clamp(min=0)
        slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + num_made).int()
        draws = slots.sampling_state.draws
        draws[slot_mapping] = draws[slot_mapping] + num_made
        places = lens.clamp(min=0)[:, None] + 1 + torch.arange(made.shape[1], device=made.device)
        self.texts[slot_mapping[:, None], places] = made.clamp(min=0).int()


class GraphedVerifyStep:
    """A `VerifyStep` as CUDA graphs, one for each bucket of batches that draft and family."""

    def __init__(self, device_step: VerifyStep) -> None:
        self.device_step = device_step
        self.families = device_step.families
        most = len(device_step.slots.slot_mapping)
        self.buckets = [size for size in batch_buckets(most) if drafts_each(size)]
        self.graphs: dict[tuple[int, Draws], CapturedStep] = {}
        run: Any = device_step  # it is captured as a `DeviceStep` is
        with cuda_captures(run) as capture:
            for bucket in self.buckets[::-1]:
                for draws in self.families:
                    self.graphs[bucket, draws] = capture(bucket, draws)

    def __call__(self, batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        """Tokens [B, K + 2], by a replay: those of `VerifyStep`, valid until the next call."""
        bucket = next(size for size in self.buckets if size >= batch_size)
        graph, made = self.graphs[bucket, draws]
        graph.replay()
        return made[:batch_size]


class Verified(NamedTuple):
    """What a step has made for a request: its tokens, None where logits are not finite numbers, and of how
    many drafts."""

    token_ids: list[int | None]
    num_drafts: int


class ResidentVerifyStep:
    """Tokens for every running request by a `VerifyStep`: reserved on the host, made on the device, and what
    was reserved for drafts that are refused is given back."""

    watch_points = ("device_step",)

    def __init__(
        self, decode_step: ResidentDecodeStep, device_step: VerifyStep | GraphedVerifyStep, memory: VerifyStep
    ) -> None:
        """decode_step: whose slots these are. memory: the step that has the texts and the limits."""
        self.device_step = device_step
        self._decode_step, self._slots = decode_step, decode_step.slots
        self._kv_manager = decode_step.kv_manager
        self._texts, self._limits = memory.texts, memory.limits
        device = self._texts.device
        self._staging = PinnedStaging(self._texts.shape[1], device)
        self._pinned_tokens = PinnedTokens(2 * MOST_ROWS, device)
        # By slot: whose text the device has, and how many of its tokens.
        self._known: dict[int, tuple[InferenceSession, int]] = {}

    def next_tokens(self, running: RunningRequests, limits: Sequence[int]) -> list[Verified]:
        """Tokens of each request, one at least and limits[b] + 1 at most, for which there are blocks. Every
        session grows by as many.

        If anything fails, all sessions are as before and the error is raised.
        """
        requests, sessions = list(running), list(running.values())
        try:
            with named_range("labkit.kv.reserve"):
                changed = self._reserve(sessions, limits)
            with named_range("labkit.slots.update"):
                self._slots.update(requests, sessions, [changed])
                self._slots.deliver()
                self._send(requests, sessions, limits)
            longest = max(session.num_tokens for session in sessions)
            draws = Draws.of(request.params for request in requests)
            if draws not in self.device_step.families:
                draws = Draws.FILTERED
            made = self.device_step(len(sessions), longest, draws)
            tokens = self._pinned_tokens.start_copy(made.flatten()).read()
        except BaseException:
            self._decode_step.undo(sessions)
            raise
        width = made.shape[1]
        verified = [as_verified(tokens[i : i + width]) for i in range(0, len(tokens), width)]
        for session, each in zip(sessions, verified, strict=True):
            self.keep(session, len(each.token_ids))
            self._known[self._slots.slot_of[session]] = session, session.num_tokens + 1
        return verified

    def keep(self, session: InferenceSession, num_made: int) -> None:
        """Count the tokens whose keys and values stay, and give back the blocks behind them."""
        session.num_tokens += num_made
        session.roll_back()

    def _reserve(self, sessions: Sequence[InferenceSession], limits: Sequence[int]) -> list[int]:
        """Make room for a token of each session and its drafts; who has another list of blocks, by place."""
        block_ids_list = [session.block_ids_per_layer[0] for session in sessions]  # one table for all layers
        changed = set(self._kv_manager.reserve_token_batch(0, block_ids_list))
        for b, (block_ids, limit) in enumerate(zip(block_ids_list, limits, strict=True)):
            num_blocks = len(block_ids)
            self._kv_manager.reserve_prompt(0, block_ids, limit)
            if len(block_ids) > num_blocks:
                changed.add(b)
        return sorted(changed)

    def _send(
        self, requests: Sequence[Request], sessions: Sequence[InferenceSession], limits: Sequence[int]
    ) -> None:
        """Send what the device lacks of the requests' texts, and how many drafts each may have."""
        for request, session in zip(requests, sessions, strict=True):
            slot = self._slots.slot_of[session]
            owner, num_known = self._known.get(slot, (None, 0))
            num_known = num_known if owner is session else 0
            if num_known < request.num_tokens:
                sent = self._staging.send(torch.tensor(request.token_ids[num_known:]))
                self._texts[slot, num_known : request.num_tokens] = sent.int()
        self._limits[: len(limits)] = self._staging.send(torch.tensor(limits))


def as_verified(row: list[int]) -> Verified:
    """A request's part of what a `VerifyStep` returns."""
    *made, num_drafts = row
    token_ids = [None if token_id == NO_TOKEN else token_id for token_id in made if token_id != NOT_MADE]
    return Verified(token_ids, num_drafts)
