"""When a step's tokens are read: at once, or one step behind, while the GPU runs the next one (rung 10)."""

import time
from collections.abc import Collection, Sequence, Set
from typing import NamedTuple, cast

from labkit.engine.request import Request, RunningRequests
from labkit.engine.session import InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.ranges import named_range


class NextTokens(NamedTuple):
    """One token per request; None where its logits are not finite numbers.

    steady: the steady batch that these requests are; None if they are none.
    """

    requests: list[Request]
    token_ids: Sequence[int | None]
    steady: "SteadyBatch | None" = None


class ReadOneBehind:
    """Step N + 1 is launched before the tokens of step N are read, so that the GPU never waits for the host.

    The host learns one step late what step N did:
    - A text that ends has one more token in flight, which is discarded. A limit is known in advance.
    - A request that joins is in no step before N + 1. One that was preempted or cancelled gets no token of N.
    - If step N + 1 needs blocks that are not free, it waits until N was read and the engine has made room.
    """

    watch_points = ("next_tokens",)

    def __init__(self, decode_step: ResidentDecodeStep) -> None:
        self.decode_step = decode_step
        self.in_flight: StepInFlight | None = None  # launched, and not read
        self._steady: SteadyBatch | None = None  # the requests of the last launch

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
        self.in_flight = self._launch_next(running, step)
        try:
            token_ids = step.read()
            if self._steady is not None and self._steady.sessions == step.sessions:
                return NextTokens(self._steady.requests, token_ids, self._steady)
            rows = self.still_running(step, running)
            return NextTokens([step.requests[b] for b in rows], [token_ids[b] for b in rows])
        except BaseException:
            self._cancel(step, running)
            raise

    def defer(self, tokens: NextTokens, eos_token_id: int | None) -> "SteadyBatch | None":
        """The steady batch that keeps the bookkeeping of these tokens until `flush`.

        None, and nothing is deferred any more, if they are not a steady batch's or end one of its requests.
        """
        if tokens.steady is None:
            return None  # a steady batch that there is begins with the step behind these tokens
        if tokens.steady.take(tokens.token_ids, eos_token_id):
            return tokens.steady
        self.flush()
        return None

    def flush(self) -> None:
        """Bring requests, sessions and blocks up to date. The steady batch is over."""
        self.catch_up()
        self._steady = None

    def catch_up(self) -> None:
        """Bring requests, sessions and blocks up to date. The steady batch goes on."""
        if self._steady is not None:
            self._steady.flush()

    # --- launches ----------------------------------------------------------------------------------

    def launch_first(self, running: RunningRequests) -> None:
        """Put a step in flight if there is none, and blocks for it. If that fails, all are as before."""
        if self.in_flight is None and running and self._has_room(running.values()):
            self.in_flight = self._launch(running, tokens_left(running))

    def _launch_next(self, running: RunningRequests, step: StepInFlight) -> StepInFlight | None:
        """Launch step N + 1; None if it has to wait for what step N, which is in flight, will tell."""
        if self._steady is not None and self._steady.can_continue(running):
            return self._launch_steady(self._steady)
        self.flush()
        in_flight = set(step.sessions)
        num_left = tokens_left(running, in_flight)
        pairs = zip(running.items(), num_left, strict=True)
        unfinished = {request: session for (request, session), left in pairs if left > 0}
        if not unfinished or not self._can_launch(unfinished.values(), in_flight):
            return None
        return self._launch(unfinished, [left for left in num_left if left > 0])  # the others end with step N

    def _launch(self, running: RunningRequests, num_left: Sequence[int]) -> StepInFlight:
        """Launch a step for these, who are a steady batch from here on."""
        step = self.decode_step.launch(running)
        try:
            self._steady = SteadyBatch(self.decode_step, step, min(num_left) - 1)
        except BaseException:
            step.cancel(running)
            raise
        return step

    def _launch_steady(self, steady: "SteadyBatch") -> StepInFlight:
        try:
            return steady.launch()
        except BaseException:  # wherever in it, the device may be ahead
            self.flush()
            self.decode_step.undo(steady.sessions)
            raise

    def _can_launch(self, sessions: Collection[InferenceSession], in_flight: Set[InferenceSession]) -> bool:
        """Whether there are blocks, and the device needs no token from the host that is still in flight."""
        knows = self.decode_step.slots.knows
        return self._has_room(sessions) and all(knows(s) for s in sessions if s in in_flight)

    def _has_room(self, sessions: Collection[InferenceSession]) -> bool:
        free = self.decode_step.kv_manager.num_free_blocks
        # A token takes one block at most.
        return len(sessions) <= free or sum(s.next_token_takes_block for s in sessions) <= free

    # --- requests that leave, reads that fail ------------------------------------------------------

    def still_running(self, step: StepInFlight, running: RunningRequests) -> list[int]:
        """The step's rows whose tokens are handed out: of requests that did not end or lose their blocks."""
        pairs = zip(step.requests, step.sessions, strict=True)
        return [b for b, (request, session) in enumerate(pairs) if running.get(request) is session]

    def drop(self) -> None:
        """Discard the step in flight: no request runs any more."""
        self.flush()
        self.in_flight = None

    def _cancel(self, step: StepInFlight, running: RunningRequests) -> None:
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

    def defer(self, tokens: NextTokens, eos_token_id: int | None) -> None:
        """No bookkeeping is done later."""

    def flush(self) -> None:
        """Nothing was deferred."""

    def launch_first(self, running: RunningRequests) -> None:
        """Nothing is launched before it is read."""

    def drop(self) -> None:
        """Nothing is in flight."""


class SteadyBatch:
    """Requests that decode together, step after step, with the bookkeeping of all of them in one place.

    A step costs the host the same for few requests and for many, but for those whose last block is full.
    Until `flush`, the requests' tokens, the sessions' lengths and the blocks' lengths are those of the
    beginning.
    """

    def __init__(self, decode_step: ResidentDecodeStep, step: StepInFlight, num_left: int) -> None:
        """step: the launch that the batch begins with. num_left: so many more can be launched before one of
        its requests reaches its limit."""
        self.requests, self.sessions = step.requests, step.sessions
        self.request_ids = [request.request_id for request in self.requests]
        self.draws = decode_step.draws_of(self.requests)
        self._stops_on_eos = any(request.params.stop_on_eos for request in self.requests)
        self._decode_step, self._kv_manager = decode_step, decode_step.kv_manager
        self._num_left = num_left
        self._num_launched = 0
        self._longest_at_first = max(session.num_tokens for session in self.sessions)
        # Per table, the record of each request's last block; and the launches that it has counted.
        self._last_infos = [
            [self._kv_manager.info(session.block_ids_per_layer[table_idx][-1]) for session in self.sessions]
            for table_idx in range(self._kv_manager.num_tables)
        ]
        self._counted_by_info = [0] * len(self.requests)
        self._counted_by_sessions = 0
        self._token_ids: list[Sequence[int | None]] = []  # not given to the requests yet, a list per step
        self._times: list[float] = []
        self._full_at: dict[int, list[int]] = {}  # launch -> rows whose last block is full by then
        for row, info in enumerate(self._last_infos[0]):
            self._full_at.setdefault(self._kv_manager.block_size - info.length + 1, []).append(row)

    # --- launches ----------------------------------------------------------------------------------

    def can_continue(self, running: RunningRequests) -> bool:
        """Whether these are its requests, none of them has its last token in flight, and there are blocks."""
        return (
            self._num_launched < self._num_left
            and list(running) == self.requests
            and len(self._full_now()) <= self._kv_manager.num_free_blocks
        )

    def launch(self) -> StepInFlight:
        """Launch the next step. If it fails, the batch is flushed and all are as before."""
        decode_step = self._decode_step
        try:
            with named_range("labkit.kv.reserve"):
                changed = self._reserve()
            if changed:
                decode_step.slots.send_rows(changed)
                decode_step.slots.deliver()
            step = decode_step.start(self.requests, self.sessions, self.longest, self.draws)
        except BaseException:
            self.flush()
            decode_step.undo(self.sessions)
            raise
        self._count_launch()
        return step

    @property
    def longest(self) -> int:
        """Tokens in the cache of the longest sequence."""
        return self._longest_at_first + self._num_launched

    def _full_now(self) -> Sequence[int]:
        return self._full_at.get(self._num_launched + 1, ())

    def _reserve(self) -> list[InferenceSession]:
        """Take a block for each request whose last one is full; the sessions whose blocks have changed."""
        rows = self._full_now()
        for row in rows:
            self._flush_length(row)
        sessions = [self.sessions[row] for row in rows]
        for table_idx in range(self._kv_manager.num_tables):
            block_ids_list = [session.block_ids_per_layer[table_idx] for session in sessions]
            self._kv_manager.reserve_token_batch(table_idx, block_ids_list)
            self._kv_manager.append_paths["in_place"] += len(self.sessions) - len(rows)
        return sessions

    def _count_launch(self) -> None:
        self._num_launched += 1
        rows = self._full_at.pop(self._num_launched, ())
        for row in rows:
            self._counted_by_info[row] = self._num_launched
            for infos, block_ids in zip(
                self._last_infos, self.sessions[row].block_ids_per_layer, strict=True
            ):
                infos[row] = self._kv_manager.info(block_ids[-1])
        if rows:
            full_again = self._num_launched + self._kv_manager.block_size
            self._full_at.setdefault(full_again, []).extend(rows)

    # --- tokens ------------------------------------------------------------------------------------

    def take(self, token_ids: Sequence[int | None], eos_token_id: int | None) -> bool:
        """Keep every request's next token; False, and nothing is kept, if one of them ends its request.

        A last token at a limit is never among them: none is launched behind it, which ends the batch.
        """
        if None in token_ids or (self._stops_on_eos and eos_token_id in token_ids):
            return False
        self._token_ids.append(token_ids)
        self._times.append(time.perf_counter())
        return True

    def flush(self) -> None:
        """Write what was deferred to the requests, the sessions and the blocks."""
        for row in range(len(self.sessions)):
            self._flush_length(row)
        for session in self.sessions:
            session.num_tokens += self._num_launched - self._counted_by_sessions
        self._counted_by_sessions = self._num_launched
        if self._token_ids:
            taken = cast("list[Sequence[int]]", self._token_ids)  # `take` keeps no None
            for request, token_ids in zip(self.requests, zip(*taken, strict=True), strict=True):
                request.output_token_ids += token_ids
                request.token_times += self._times
        self._token_ids, self._times = [], []

    def _flush_length(self, row: int) -> None:
        """Count the tokens launched since in the record of the request's last block."""
        for infos in self._last_infos:
            infos[row].length += self._num_launched - self._counted_by_info[row]
        self._counted_by_info[row] = self._num_launched
