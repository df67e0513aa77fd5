"""Prompts into the cache in chunks without pads, beside the decode steps (rung 13)."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, pairwise
from typing import Any

from labkit.engine.packed_chunk import PackedChunk, counts_of
from labkit.engine.prefill import FirstTokens
from labkit.engine.request import Request
from labkit.engine.scheduler import Joining, OnlineScheduler
from labkit.engine.step.chunk import ChunkInFlight, ResidentChunkStep
from labkit.engine.step.staging import NUM_BUFFERS
from labkit.ranges import named_range

MANY = 16  # requests that could run: they wait longer for each other than those who run for a larger chunk
FEWEST_AT_FIRST = 2048  # tokens of a first chunk: fewer are computed before the host has the next one

MakeChunk = Callable[[Sequence[Sequence[int]], Sequence[int], int], Any]  # what `PackedChunk` is


class PackedPrefill:
    """Each step launches a chunk of prompt tokens, or several while nobody runs, and reads the first tokens
    of one launched before it.

    Nobody waits: the chunk runs beside the decode step, and while the host reads the tokens of one step, the
    GPU has the next one's work. A request that was admitted is *joining* until its first token is read: see
    `OnlineScheduler`. If it leaves meanwhile, what is in flight for it is discarded, and what is launched
    later, which may write to its blocks, waits for the chunk.
    """

    watch_points = ("make_chunk",)

    def __init__(
        self,
        chunk_step: ResidentChunkStep,
        make_chunk: MakeChunk,
        scheduler: OnlineScheduler,
    ) -> None:
        """make_chunk: `PackedChunk`, or the reader's."""
        self.chunk_step = chunk_step
        self.make_chunk = make_chunk
        self._scheduler = scheduler
        scheduler.wait_for_chunks = lambda: chunk_step.side.join()
        self.in_flight: deque[ChunkInFlight] = deque()  # launched, the oldest first
        self.due: ChunkInFlight | None = None  # launched before those, and to be read next

    @property
    def max_tokens(self) -> int:
        """Tokens of the next chunk at most; 0 if those in flight are enough.

        Few where a decode step is beside it, for those who run wait for it as well; but as many times more as
        there are requests that could run beside each of them, or as there are MANY of these. Where nobody
        runs, more chunks follow while a step's tokens have room for whole ones.
        """
        config, scheduler = self._scheduler.config, self._scheduler
        most = min(config.prefill_max_tokens, self.chunk_step.max_tokens)
        num_running = len(scheduler.running)
        if num_running:
            num_free = config.max_batch_size - num_running
            num_wanted = min(num_free, len(scheduler.waiting) + len(scheduler.joining))
            times = max(1, num_wanted // num_running, num_wanted // MANY)
            most = min(most, config.prefill_chunk_tokens * times)
        if not self.in_flight:
            return most if num_running or self.due else self._first_tokens(most)
        num_launched = sum(chunk.num_tokens for chunk in self.in_flight)
        has_room = len(self.in_flight) < NUM_BUFFERS and num_launched + most <= config.prefill_max_tokens
        return most if has_room and not num_running else 0

    def _first_tokens(self, most: int) -> int:
        """Tokens at most of a chunk that the GPU waits for: half of those that several prompts have, rounded
        up to the rows of a graph. While it computes them, the host prepares the others. All, if they are few.
        """
        waiting = list(islice(self._scheduler.waiting, self._scheduler.config.max_batch_size))
        half = sum(request.num_tokens for request in waiting) // 2
        if len(waiting) < 2 or half < FEWEST_AT_FIRST:
            return most
        return self.chunk_step.num_rows(min(most, half))

    # --- launches ----------------------------------------------------------------------------------

    def launch(self) -> bool:
        """Admit what fits and launch the next chunks. False: the running requests need not wait for them.

        If one fails, all are as before it, but for cached prompts that made room.
        """
        if self.due is None:  # else a step has failed before it was read
            self.due = self.in_flight.popleft() if self.in_flight else None
            while (room := self.max_tokens) > 0 and (launched := self._launch_next(room)) is not None:
                self.in_flight.append(launched)
        return False

    def _launch_next(self, max_tokens: int) -> ChunkInFlight | None:
        started = time.perf_counter()
        admitted = self._admit(max_tokens)
        try:
            launched = self._launch(self._next_prompts(), max_tokens)
        except BaseException:
            self._scheduler.put_back(admitted)
            raise
        for request in admitted:
            request.admitted = request.admitted or started
        return launched

    def _admit(self, max_tokens: int) -> list[Request]:
        """The requests that begin to join, as many as a chunk of so many tokens has room for."""
        room = max_tokens - sum(joining.num_left for joining in self._scheduler.joining.values())
        if room < 1 or not self._scheduler.may_admit():
            return []
        return [request for request, _, _ in self._scheduler.admit(room)]

    def _next_prompts(self) -> dict[Request, Joining]:
        """The oldest requests whose first token is not on its way, as many as a chunk can have."""
        joining = self._scheduler.joining.items()
        unfinished = {request: each for request, each in joining if not each.is_finished}
        return dict(list(unfinished.items())[: self.chunk_step.max_prompts])

    def _launch(self, joining: dict[Request, Joining], max_tokens: int) -> ChunkInFlight | None:
        if not joining:
            return None
        prompts = [each.token_ids for each in joining.values()]
        num_launched = [each.num_launched for each in joining.values()]
        with named_range("labkit.prefill.pack"):
            chunk = PackedChunk(prompts, num_launched, 0)  # all of them are in the prefix cache
            counts = [0] * len(prompts)
            if any(each.num_left for each in joining.values()):
                chunk = self.make_chunk(prompts, num_launched, max_tokens)
                if self.make_chunk is PackedChunk:  # whose prompts nobody needs to read again
                    counts = [end - start for start, end in pairwise(chunk.starts)]
                else:
                    counts = counts_of(chunk, prompts, num_launched, max_tokens)
        finished = finished_by(joining.values(), counts)
        launched = self.chunk_step.launch(chunk, joining, finished)
        for each, count in zip(joining.values(), counts, strict=True):
            each.num_launched += count
        for p in finished:
            launched.joining[p].is_finished = True
        return launched

    # --- first tokens ------------------------------------------------------------------------------

    def read(self) -> FirstTokens:
        """The first tokens of the chunk that is due, which was launched in a step before.

        If reading fails, all who join wait again, for what they have was computed behind it. Prompts are kept
        for others here, and not when they are launched: a finite token says that all before it is.
        """
        chunk, self.due = self.due, None
        assert chunk is not None
        joining = self._scheduler.joining
        try:
            rows = [p for p in chunk.finished if joining.get(chunk.requests[p]) is chunk.joining[p]]
            requests = [chunk.requests[p] for p in rows]
            made = chunk.read() if rows else []
            token_ids = [made[p] for p in rows]
            for p, request, token_id in zip(rows, requests, token_ids, strict=True):
                session, last_logits = chunk.joining[p].session, chunk.last_logits[p]
                self._scheduler.keep_prompt_of(request, session, last_logits, token_id)
        except BaseException:
            self.in_flight.clear()
            self._scheduler.put_back(list(joining))
            raise
        num_reused = sum(chunk.joining[p].num_reused for p in rows)
        return FirstTokens(requests, token_ids, chunk.num_tokens, num_reused)

    def join(self, requests: Sequence[Request]) -> None:
        """Those that were read run, and get their first tokens now."""
        self._scheduler.join(requests)

    def lost(self) -> list[Request]:
        """The requests that join and whose first token is in no chunk, because of an error after its launch
        or its read."""
        chunks = [chunk for chunk in (self.due, *self.in_flight) if chunk is not None]
        coming = {each for chunk in chunks for each in chunk.joining}
        joining = self._scheduler.joining.items()
        return [request for request, each in joining if each.is_finished and each not in coming]


def finished_by(joining: Iterable[Joining], counts: Sequence[int]) -> list[int]:
    """Which prompts, by place, are computed to the end when each has had so many tokens more.

    One that the prefix cache knows all of, which needs none, comes behind those that were admitted before.
    """
    finished, is_next = [], True
    for p, (each, count) in enumerate(zip(joining, counts, strict=True)):
        is_finished = count == each.num_left and (count > 0 or is_next)
        if is_finished:
            finished.append(p)
        is_next = is_next and is_finished
    return finished
