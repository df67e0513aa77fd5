"""When a step's tokens are read: at once, or one step behind, while the GPU runs the next one (rung 10)."""

import time
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any, NamedTuple

from labkit.engine.request import Request, RunningRequests
from labkit.engine.session import InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import InFlight, ResidentDecodeStep, StepInFlight


class NextTokens(NamedTuple):
    """One token per request; None where its logits are not finite numbers.

    batch: these requests, if all were launched once more: then none of the tokens is None, or at a limit.
    more: tokens behind these, of requests for which the same step has made several, in their order: drafts
        that were right, of num_drafted.
    """

    requests: list[Request]
    token_ids: Sequence[int | None]
    batch: "Batch | None" = None
    more: "Sequence[NextTokens]" = ()
    num_drafted: int = 0

    @property
    def of_unfinished(self) -> "NextTokens":
        """Those of requests that have not ended."""
        pairs = zip(self.requests, self.token_ids, strict=True)
        left = [(request, token_id) for request, token_id in pairs if request.completion is None]
        return NextTokens([request for request, _ in left], [token_id for _, token_id in left])


class ReadOneBehind:
    """Step N + 1 is launched before the tokens of step N are read, so that the GPU never waits for the host.

    The host learns one step late what step N did:
    - A text that ends has one more token in flight, which is discarded. A limit is known in advance.
    - A request that joins is in no step before N + 1. One that was preempted or cancelled gets no token of N.
    - If step N + 1 needs blocks that are not free, cached prompts make way. If that is not enough, it waits
      until N was read and the engine has made room.
    """

    watch_points = ("next_tokens",)

    def __init__(self, decode_step: ResidentDecodeStep) -> None:
        self.decode_step = decode_step
        # For so many blocks; an engine sets it.
        self.make_way: Callable[[int], None] = lambda num_blocks: None
        self.in_flight: StepInFlight | None = None  # launched, and not read
        self._batch: Batch | None = None  # of the last launch

    @property
    def is_ahead(self) -> bool:
        """Whether a step was launched whose tokens have not been read."""
        return self.in_flight is not None

    def next_tokens(self, running: RunningRequests) -> NextTokens:
        """Launch step N + 1, read step N: the next token of each request of step N that still runs.

        If the launch fails, step N stays in flight, for the next call to read. If reading fails, all are as
        before the launch of step N.
        """
        step = self.in_flight
        if step is None:
            step = self.in_flight = self._launch(running, tokens_left(running))
        following = self.in_flight = self._launch_behind(step, running)
        try:
            token_ids = step.read()
            if step.is_finite and following is not None and following.requests is step.requests:
                return NextTokens(step.requests, token_ids, self._batch)
            rows = self.still_running(step, running)
            return NextTokens([step.requests[b] for b in rows], [token_ids[b] for b in rows])
        except BaseException:
            self._cancel(step, running)
            raise

    # --- launches ----------------------------------------------------------------------------------

    def launch_first(self, running: RunningRequests) -> None:
        """Put a step in flight if there is none, and blocks for it. If that fails, all are as before."""
        if self.in_flight is None and running and self._has_room(running.values()):
            self.in_flight = self._launch(running, tokens_left(running))

    def _launch_behind(self, step: StepInFlight, running: RunningRequests) -> StepInFlight | None:
        """Launch step N + 1; None if it has to wait for what step N, which is in flight, will tell."""
        batch, self._batch = self._batch, None  # a launch that fails ends it
        if batch is not None and batch.goes_on(running) and (following := batch.launch()) is not None:
            self._batch = batch
            return following
        in_flight = set(step.sessions)
        num_left = tokens_left(running, in_flight)
        pairs = zip(running.items(), num_left, strict=True)
        unfinished = {request: session for (request, session), left in pairs if left > 0}
        if not unfinished or not self._can_launch(unfinished.values(), in_flight):
            return None
        return self._launch(unfinished, [left for left in num_left if left > 0])  # the others end with step N

    def _launch(self, running: RunningRequests, num_left: Sequence[int]) -> StepInFlight:
        """Launch a step for these, who are a batch from here on."""
        step = self.decode_step.launch(running)
        try:
            self._batch = Batch(self.decode_step, step, min(num_left) - 1, self.make_way)
        except BaseException:
            step.cancel(running)
            raise
        return step

    def _can_launch(self, sessions: Collection[InferenceSession], in_flight: Set[InferenceSession]) -> bool:
        """Whether there are blocks, and the device needs no token from the host that is still in flight."""
        knows = self.decode_step.slots.knows
        return self._has_room(sessions) and all(knows(s) for s in sessions if s in in_flight)

    def _has_room(self, sessions: Collection[InferenceSession]) -> bool:
        manager = self.decode_step.kv_manager
        if len(sessions) <= manager.num_free_blocks:  # a token takes one block at most
            return True
        num_blocks = sum(session.next_token_takes_block for session in sessions)
        self.make_way(num_blocks)
        return num_blocks <= manager.num_free_blocks

    # --- requests that leave, reads that fail ------------------------------------------------------

    def still_running(self, step: InFlight, running: RunningRequests) -> list[int]:
        """The step's rows whose tokens are handed out: of requests that did not end or lose their blocks."""
        pairs = zip(step.requests, step.sessions, strict=True)
        return [b for b, (request, session) in enumerate(pairs) if running.get(request) is session]

    def drop(self) -> None:
        """Discard the step in flight: no request runs any more."""
        self.in_flight = self._batch = None

    def _cancel(self, step: InFlight, running: RunningRequests) -> None:
        """Undo a step that could not be read, and the one behind it, which was computed from its tokens."""
        following = self.in_flight
        self.drop()
        step.cancel(running)
        if following is not None:
            following.cancel(running)


def tokens_left(running: RunningRequests, in_flight: Set[InferenceSession] = frozenset()) -> list[int]:
    """How many tokens each request has before its limit, not counting the one in flight to its session."""
    return [
        request.params.max_new_tokens - len(request.output_token_ids) - (session in in_flight)
        for request, session in running.items()
    ]


class ReadAtOnce:
    """The host waits for each step's tokens before it does anything else (rungs up to 09)."""

    watch_points = ("next_tokens",)
    is_ahead = False

    def __init__(self, decode_step: DecodeStep | ResidentDecodeStep) -> None:
        self.decode_step = decode_step

    def next_tokens(self, running: RunningRequests) -> NextTokens:
        """The next token of every running request. If it fails, all are as before."""
        return NextTokens(list(running), self.decode_step.next_tokens(running))

    def launch_first(self, running: RunningRequests) -> None:
        """Nothing is launched before it is read."""

    def drop(self) -> None:
        """Nothing is in flight."""


class Batch:
    """The requests of a launch, and what launches behind it need of them, looked up once.

    While the same requests go on, the host asks for blocks only where one is full. What it does for each of
    them beside that are loops without a decision.
    """

    def __init__(
        self,
        decode_step: ResidentDecodeStep,
        step: StepInFlight,
        num_left: int,
        make_way: Callable[[int], None],
    ) -> None:
        """step: the launch that the batch begins with. num_left: so many more can be launched before one of
        its requests reaches its limit. make_way: has so many blocks freed, if that can be."""
        self._make_way = make_way
        self.requests, self.sessions = step.requests, step.sessions
        self.request_ids = [request.request_id for request in self.requests]
        self._decode_step, self._kv_manager = decode_step, decode_step.kv_manager
        self._num_left = num_left
        self._num_shares = self._kv_manager.num_shares
        self._longest = max(session.num_tokens for session in self.sessions)
        self._stops_on_eos = any(request.params.stop_on_eos for request in self.requests)
        self._may_stop = any(request.params.stop for request in self.requests)
        self._add_token: list[Callable[[Any], None]] = [r.output_token_ids.append for r in self.requests]
        self._times: list[float] = []
        for request in self.requests:
            request.time_lists.append(self._times)
        # By table, the record of each request's last block.
        self._last_infos = [
            [
                self._kv_manager.block_infos[session.block_ids_per_layer[table_idx][-1]]
                for session in self.sessions
            ]
            for table_idx in range(self._kv_manager.num_tables)
        ]
        self._full_at: dict[int, list[int]] = {}  # rows whose last block is full, by `_longest` then
        for row, info in enumerate(self._last_infos[0]):
            full_at = self._longest + self._kv_manager.block_size - info.length
            self._full_at.setdefault(full_at, []).append(row)

    # --- launches ----------------------------------------------------------------------------------

    def goes_on(self, running: RunningRequests) -> bool:
        """Whether these run in its sessions, and none of them has its last token in flight. Not if somebody
        has shared a block since, which may have to be copied."""
        return (
            self._num_left > 0
            and self._num_shares == self._kv_manager.num_shares
            and list(running.values()) == self.sessions
        )

    def launch(self) -> StepInFlight | None:
        """Launch the next step; None if blocks are missing. If it fails, all are as before."""
        decode_step, full = self._decode_step, self._full_at.pop(self._longest, [])
        try:
            if full and not self._reserve(full):
                return None
            for infos in self._last_infos:
                for info in infos:
                    info.length += 1
            step = decode_step.start(self.requests, self.sessions, self._longest)
            for session in self.sessions:
                session.num_tokens += 1
            in_place = len(self._last_infos) * (len(self.sessions) - len(full))
            self._kv_manager.append_paths["in_place"] += in_place
            self._longest += 1
            self._num_left -= 1
            return step
        except BaseException:  # wherever in it, the device may be ahead
            for request, session in zip(self.requests, self.sessions, strict=True):
                session.num_tokens = request.num_tokens  # as many as there are, with the one in flight
            decode_step.undo(self.sessions)
            raise

    def _reserve(self, rows: list[int]) -> bool:
        """Take a block for each of these rows, whose last one is full, and tell the device; False if there
        are not so many."""
        manager, slots = self._kv_manager, self._decode_step.slots
        sessions = [self.sessions[row] for row in rows]
        sequences = [session.block_ids_per_layer for session in sessions]
        if not manager.add_blocks(sequences):
            self._make_way(len(rows))
            if not manager.add_blocks(sequences):
                return False
        for row, session in zip(rows, sessions, strict=True):
            for infos, block_ids in zip(self._last_infos, session.block_ids_per_layer, strict=True):
                infos[row] = manager.block_infos[block_ids[-1]]
        manager.append_paths["boundary"] += len(self._last_infos) * len(rows)
        self._full_at.setdefault(self._longest + manager.block_size, []).extend(rows)
        slots.send_rows(sessions)
        slots.deliver()
        return True

    # --- tokens ------------------------------------------------------------------------------------

    def take(self, token_ids: Sequence[int | None], eos_token_ids: frozenset[int]) -> bool:
        """Give every request its next token; False, and nothing is given, if one of them ends its request,
        or may: where a request has stop strings, its text must be looked at.

        None is among them only in `NextTokens` without a batch.
        """
        if self._may_stop or (self._stops_on_eos and not eos_token_ids.isdisjoint(token_ids)):
            return False
        self._times.append(time.perf_counter())
        for add_token, token_id in zip(self._add_token, token_ids, strict=True):
            add_token(token_id)
        return True
