"""Steps that verify drafts, as the host launches and reads them: reserved, in flight, and settled."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine.request import Request, RunningRequests
from labkit.engine.sampling import Draws
from labkit.engine.session import InferenceSession
from labkit.engine.step.resident import InFlight, ResidentDecodeStep
from labkit.engine.step.staging import PinnedStaging, PinnedTokens, TokenCopy
from labkit.engine.step.verify import MOST_ROWS, GraphedVerifyStep, VerifyStep
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.kernels.verify_rows import NOT_MADE
from labkit.ranges import named_range


class Verified(NamedTuple):
    """What a step has made for a request: its tokens, None where logits are not finite numbers, and of how
    many drafts."""

    token_ids: list[int | None]
    num_drafts: int


class VerifyInFlight:
    """A step that was launched, and of which it is not known how many tokens it makes. `read` it once, or
    `cancel` it."""

    watch_points = ("read",)

    def __init__(
        self,
        step: "ResidentVerifyStep",
        running: RunningRequests,
        limits: Sequence[int],
        tokens: TokenCopy,
        width: int,
    ) -> None:
        """limits: drafts of each request at most. width: numbers of a request among the tokens."""
        self.requests, self.sessions = list(running), list(running.values())
        self._limits = dict(zip(self.requests, limits, strict=True))
        self._step, self._tokens, self._width = step, tokens, width

    def has(self, request: Request, session: InferenceSession | None) -> bool:
        return request in self._limits and session in self.sessions

    def drafts(self, request: Request) -> bool:
        """Whether it may have drafts of the request."""
        return self._limits.get(request, 0) > 0

    @property
    def num_drafting(self) -> int:
        """How many requests may have drafts in it."""
        return sum(limit > 0 for limit in self._limits.values())

    def num_ahead(self, request: Request, num_known: int = 0) -> int:
        # Its last token is in no row.
        num_left = request.params.max_new_tokens - len(request.output_token_ids)
        return min(num_known + self._limits[request] + 1, num_left)

    def read(self) -> list[Verified]:
        """Wait for the tokens of each request."""
        tokens = self._tokens.read()
        return [as_verified(tokens[i : i + self._width]) for i in range(0, len(tokens), self._width)]

    def settle(self, row: int, made: Verified, following: InFlight | None) -> None:
        """Have a running request's session count what was made, and what the step behind may make; blocks
        behind that are given back."""
        request, session = self.requests[row], self.sessions[row]
        num_certain, num_made = request.num_tokens - 1, len(made.token_ids)
        self._step.knows_text(session, num_certain + num_made + 1)
        if following is not None and following.has(request, session):
            num_made = following.num_ahead(request, num_made)
        session.num_tokens = num_certain + num_made
        session.roll_back()

    def cancel(self, running: RunningRequests) -> None:
        """Undo the launch for the requests that still run: their sessions count what is certain."""
        undone = []
        for request, session in zip(self.requests, self.sessions, strict=True):
            if running.get(request) is session:
                session.num_tokens = request.num_tokens - 1
                undone.append(session)
        self._step.undo(undone)


class ResidentVerifyStep:
    """Tokens for every running request by a `VerifyStep`: reserved on the host, made on the device, and what
    was reserved for drafts that are refused is given back.

    A step may be launched behind one that is not read: where that one will end the device knows, and the host
    reserves for the most tokens that both can make.
    """

    watch_points = ("device_step", "launch")

    def __init__(
        self, decode_step: ResidentDecodeStep, device_step: VerifyStep | GraphedVerifyStep, memory: VerifyStep
    ) -> None:
        """decode_step: whose slots these are. memory: the step that has the texts and the limits."""
        self.device_step = device_step
        self._decode_step, self._slots = decode_step, decode_step.slots
        self._kv_manager = decode_step.kv_manager
        self._texts, self._bounds = memory.texts, memory.bounds
        device = self._texts.device
        self._staging = PinnedStaging(max(self._texts.shape[1], self._bounds.numel()), device)
        self._pinned_tokens = PinnedTokens(2 * MOST_ROWS, device)
        self._staging.copy = self._pinned_tokens.copy = decode_step.pinned_tokens.copy
        # By slot: whose text the device has, and how many of its tokens.
        self._known: dict[int, tuple[InferenceSession, int]] = {}
        self._sent: list[int] = []  # the bounds that the device has

    def launch(
        self, running: RunningRequests, limits: Sequence[int], behind: InFlight | None = None
    ) -> VerifyInFlight:
        """Have the device make tokens of each request, one at least and limits[b] + 1 at most, for which
        there are blocks. Every session counts as many as there may be.

        behind: the step in flight, if there is one. If anything fails, all sessions are as before and the
        error is raised.
        """
        requests, sessions = list(running), list(running.values())
        ends = [len(r.prompt_token_ids) + r.params.max_new_tokens - 1 for r in requests]
        reached = [
            min(session.num_tokens + limit + 1, end)
            for session, limit, end in zip(sessions, limits, ends, strict=True)
        ]
        try:
            with named_range("labkit.kv.reserve"):
                changed = self._reserve(sessions, reached)
            with named_range("labkit.slots.update"):
                self._slots.update(requests, sessions, [changed])
                self._slots.deliver()
                self._send_bounds([*limits, *ends])
                self._send_texts(running, behind)
            draws = Draws.of(request.params for request in requests)
            if draws not in self.device_step.families:
                draws = Draws.FILTERED
            made = self.device_step(len(sessions), max(reached), draws)
            tokens = self._pinned_tokens.start_copy(made.flatten())
            step = VerifyInFlight(self, running, limits, tokens, made.shape[1])
        except BaseException:
            self.undo(sessions)
            raise
        for session, num_tokens in zip(sessions, reached, strict=True):
            session.num_tokens = num_tokens
        return step

    def knows_text(self, session: InferenceSession, num_tokens: int) -> None:
        """The device has so many tokens of the session's text."""
        if (slot := self._slots.slot_of.get(session)) is not None:
            self._known[slot] = session, num_tokens

    def undo(self, sessions: Sequence[InferenceSession]) -> None:
        """Cut blocks back to what the sessions count; the device is told of all anew at the next step."""
        self._sent = []
        self._decode_step.undo(sessions)

    def _reserve(self, sessions: Sequence[InferenceSession], reached: Sequence[int]) -> list[int]:
        """Make room up to so many tokens of each session; who has another list of blocks, by place."""
        more = [number - session.num_tokens for session, number in zip(sessions, reached, strict=True)]
        rows = [b for b, number in enumerate(more) if number > 0]
        block_ids_list = [sessions[b].block_ids_per_layer[0] for b in rows]  # one table for all layers
        changed = {rows[i] for i in self._kv_manager.reserve_token_batch(0, block_ids_list)}
        for b, block_ids in zip(rows, block_ids_list, strict=True):
            num_blocks = len(block_ids)
            self._kv_manager.reserve_prompt(0, block_ids, more[b] - 1)
            if len(block_ids) > num_blocks:
                changed.add(b)
        return sorted(changed)

    def _send_bounds(self, numbers: list[int]) -> None:
        """Send how many drafts each request may have, and where its keys and values end; if they have
        changed."""
        if numbers != self._sent:
            self._sent = []
            sent = self._staging.send(torch.tensor(numbers)).view(2, -1)
            self._bounds[:, : sent.shape[1]] = sent
            self._sent = numbers

    def _send_texts(self, running: RunningRequests, behind: InFlight | None) -> None:
        """Send what the device lacks of the requests' texts. A step in flight that verifies writes them; of
        another one the device knows the last token."""
        verified = behind if isinstance(behind, VerifyInFlight) else None
        for request, session in running.items():
            if verified is None or not verified.has(request, session):
                self._send_text(request, session)
        if behind is not None and verified is None:
            slots = self._slots
            rows = slots.slot_mapping[: len(running)]
            self._texts[rows, slots.context_lens[rows].long()] = slots.last_token_ids[rows].int()

    def _send_text(self, request: Request, session: InferenceSession) -> None:
        """Send what the device lacks of the tokens that the host knows."""
        slot = self._slots.slot_of[session]
        owner, num_known = self._known.get(slot, (None, 0))
        num_known = num_known if owner is session else 0
        if num_known < request.num_tokens:
            sent: Tensor = self._staging.send(torch.tensor(request.token_ids[num_known:]))
            self._texts[slot, num_known : request.num_tokens] = sent.int()


def as_verified(row: list[int]) -> Verified:
    """A request's part of what a `VerifyStep` returns."""
    *made, num_drafts = row
    token_ids = [None if token_id == NO_TOKEN else token_id for token_id in made if token_id != NOT_MADE]
    return Verified(token_ids, num_drafts)
