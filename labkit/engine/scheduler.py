"""Who runs: the order of the queue, the budgets of a step, the memory to run in, and who makes way for it."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from labkit.engine.config import SchedulerConfig
from labkit.engine.request import FinishReason, Request
from labkit.engine.session import InferenceSession
from labkit.engine.step.resident import InFlight
from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockManager, Prefix, Prefixes


class Admitted(NamedTuple):
    """A request that joins the running ones, its session, and the cached prefix that it begins with."""

    request: Request
    session: InferenceSession
    prefix: Prefix | None


@dataclass(eq=False)
class Joining:
    """What a request has whose prompt is computed in chunks (rung 13), until its first token is read.

    session: with room for the whole prompt, all counted. num_launched: how many tokens have their keys and
    values in the cache, or on their way there. prefix: the cached prompt that it begins with. is_finished:
    whether its first token is on its way.
    """

    session: InferenceSession
    token_ids: tuple[int, ...]
    prefix: Prefix | None
    num_launched: int = field(init=False)
    is_finished: bool = False

    def __post_init__(self) -> None:
        self.num_launched = self.num_reused

    @property
    def num_reused(self) -> int:
        """Tokens that the prefix cache had."""
        return self.prefix.num_tokens if self.prefix else 0

    @property
    def num_left(self) -> int:
        """Tokens that no chunk has had."""
        return len(self.token_ids) - self.num_launched


class Growth:
    """The free blocks that sessions need to grow: new ones, and copies of last ones that they share."""

    def __init__(self) -> None:
        self.num_new = 0
        self._copying: list[tuple[InferenceSession, int]] = []

    @property
    def num_blocks(self) -> int:
        """All of them."""
        return self.num_new + len(self._copying)

    def add(self, session: InferenceSession, num_tokens: int) -> None:
        """Count what a session needs to reach so many tokens."""
        self.num_new += session.new_blocks_to_reach(num_tokens)
        if session.copies_last(num_tokens):
            self._copying.append((session, num_tokens))

    def recount_copies(self) -> None:
        """After an eviction a session may no longer share its last block."""
        self._copying = [(session, n) for session, n in self._copying if session.copies_last(n)]


class OnlineScheduler:
    """Continuous batching (Orca, Yu et al., 2022): requests join and leave the batch between steps.

    A request waits without blocks, or runs with a session that has them. Where prompts are computed beside
    the decode steps (rung 13), it joins in between, with blocks for its prompt.
    - Order: first come, first served, or the shortest of a window ("pack").
    - Budgets: requests per batch, requests and prompt tokens per admission.
    - Fit: there must be blocks for its tokens, and for one more token of each running request. The first
      request that does not fit ends the admission, so that a big one is not starved by small ones.
    - Share: nor is the part of a prompt computed twice that somebody admitted before it is about to compute:
      that ends the admission, too, and the request finds the part in the cache.
    - Evict: cached prompts make way for a request, and for a decode step.
    - Preempt: if that is not enough for a decode step, the newest request waits again: of those that join,
      or else of those that run.
    """

    watch_points = ("add", "admit", "make_room_to_decode")

    def __init__(
        self, config: SchedulerConfig, kv_manager: KVBlockManager, prefix_cache: Prefixes | None
    ) -> None:
        self.config = config
        self.waiting: OrderedDict[Request, None] = OrderedDict()  # a queue that can be left from any place
        self.joining: dict[Request, Joining] = {}  # in order of admission, the oldest first, as are these:
        self.running: dict[Request, InferenceSession] = {}
        # Has the device wait for the chunks that it has begun, before blocks that these may write to are
        # another's. Where prompts are computed in chunks, they set it.
        self.wait_for_chunks: Callable[[], None] = lambda: None
        self._kv_manager = kv_manager
        self._prefix_cache = prefix_cache
        # Id of the request that did not fit, and how many blocks had been let go of by then. Until one more
        # is, it does not fit either: running requests take blocks, and give none back.
        self._refused: tuple[int, int] | None = None

    @property
    def requests(self) -> list[Request]:
        """All requests: those that run, that join and that wait."""
        return [*self.running, *self.joining, *self.waiting]

    @property
    def sessions(self) -> list[InferenceSession]:
        """Those of all requests that have blocks."""
        return [*self.running.values(), *(joining.session for joining in self.joining.values())]

    # --- proofs ------------------------------------------------------------------------------------

    def check_queues(self, unfinished: Collection[int]) -> None:
        """Prove that each unfinished request, by id, waits, joins or runs. Raises AssertionError."""
        queued = [request.request_id for request in self.requests]
        if sorted(queued) != sorted(unfinished):
            raise AssertionError(f"unfinished requests are {sorted(unfinished)}, but {queued} are queued")

    def check_lengths(self, step: InFlight | None, is_ahead: bool) -> None:
        """Prove that of a running request all tokens but the last are in the cache, and with a step in flight
        those that it may make. Raises AssertionError naming the request of which this is not so.

        is_ahead: whether a step is in flight. One that a reader's own part keeps elsewhere is not told here:
        then a token more may be in flight to anybody.
        """
        in_flight = set(step.sessions) if step else set()
        for request, session in self.running.items():
            least = request.num_tokens - 1
            if step and session in in_flight:
                least += step.num_ahead(request)
            most = least + (is_ahead and step is None)
            if not request.output_token_ids or not least <= session.num_tokens <= most:
                raise AssertionError(
                    f"request {request.request_id} runs with {len(request.output_token_ids)} new tokens and "
                    f"{session.num_tokens} tokens in the cache, expected {least}"
                )

    # --- requests that come and go -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting[request] = None

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free its blocks."""
        if request in self.waiting:
            del self.waiting[request]
        elif request in self.joining:
            self.wait_for_chunks()
            self.joining[request].session.release()
            del self.joining[request]
        else:
            self.running[request].release()
            del self.running[request]

    def join(self, requests: Iterable[Request]) -> None:
        """Requests that were joining run: their prompts are computed, and their first tokens were read."""
        for request in requests:
            self.running[request] = self.joining.pop(request).session

    def put_back(self, requests: Sequence[Request]) -> None:
        """Free the blocks of requests that join or run: they wait again, ahead of all others, in the order
        given."""
        for request in requests:
            self.remove(request)
        for request in reversed(requests):
            self.waiting[request] = None
            self.waiting.move_to_end(request, last=False)

    # --- to join -----------------------------------------------------------------------------------

    def may_admit(self) -> bool:
        """Whether a request waits that `admit` has not refused already."""
        first = next(iter(self._in_order()), None)
        if first is None or self._num_served >= self.config.max_batch_size:
            return False
        return self._refused != (first.request_id, self._kv_manager.num_let_go)

    def admit(self, room: int | None = None) -> list[Admitted]:
        """Move requests from waiting to running, as order, budgets and memory allow.

        room: for how many tokens the next chunk has room, at least 1 (rung 13). Then they join, each with
        blocks for its whole prompt, until what is to be computed of them fills the room; the last one may
        have more than that.
        If anything fails, all wait as before and the error is raised: OutOfBlocksError if nobody runs and the
        first does not fit, which only a prefix cache that lets no block go can bring about.
        """
        admitted: list[Admitted] = []
        num_tokens, needed = 0, self._num_served  # blocks: a token takes one at most, so they may be fewer
        growth: Growth | None = None  # counted when those are too many
        prefixes, num_free = self._prefix_cache, self._kv_manager.num_free_blocks
        places = min(self.config.max_batch_size - self._num_served, self.config.prefill_max_batch_size)
        limit = self.config.prefill_max_tokens if room is None else room
        computing = [joining.token_ids for joining in self.joining.values()]
        texts: list[tuple[int, ...]] = []  # of those admitted, and of one that was refused behind them
        self._refused = None
        try:
            for request in self._in_order():
                length = request.num_tokens
                least = length if room is None else 1  # a chunk takes a part of a prompt, too
                if len(admitted) >= places or (admitted and num_tokens + least > limit):
                    break
                token_ids = request.token_ids
                if prefixes is not None and prefixes.is_coming(token_ids, computing + texts):
                    break
                texts.append(token_ids)
                prefix = prefixes.lookup(token_ids) if prefixes else None
                session = InferenceSession(self._kv_manager, prefix)
                admitted.append(Admitted(request, session, prefix))
                needed += session.blocks_to_reach(length)
                if growth is not None:
                    growth.add(session, length)
                if needed > num_free:
                    growth = growth or self._growth(admitted)
                    needed = self._evict_for(growth)
                    num_free = self._kv_manager.num_free_blocks
                if needed > num_free:
                    self._refuse(admitted.pop(), is_first=not admitted)
                    break
                num_tokens += length - (0 if room is None else session.num_tokens)
            if room is not None:
                for request, session, _ in admitted:
                    session.reserve_prompt(request.num_tokens - session.num_tokens)
        except BaseException:
            for _, session, _ in admitted:
                session.release()
            raise
        self._count_passed_over(admitted)
        for (request, session, prefix), token_ids in zip(admitted, texts, strict=False):
            del self.waiting[request]
            if room is None:
                self.running[request] = session
            else:
                self.joining[request] = Joining(session, token_ids, prefix)
        return admitted

    def _in_order(self) -> Iterable[Request]:
        """The waiting requests that may be asked now, in the order of the policy."""
        if self.config.admission_policy == "fifo":
            return self.waiting
        limit = self.config.pack_window
        overdue = sorted(
            (r for r in self.waiting if r.times_passed_over >= limit), key=lambda r: r.request_id
        )
        window = islice(self.waiting, min(limit, len(self.waiting)))  # a limit of any size
        others = [r for r in window if r.times_passed_over < limit]
        return overdue + sorted(others, key=lambda r: r.num_tokens)

    @property
    def _num_served(self) -> int:
        return len(self.running) + len(self.joining)

    def _growth(self, admitted: Sequence[Admitted]) -> Growth:
        """What all who have blocks need for one more token, and those admitted for their prompts."""
        growth = Growth()
        for session in self.sessions:
            growth.add(session, session.num_tokens + 1)
        for request, session, _ in admitted:
            growth.add(session, request.num_tokens)
        return growth

    def _evict_for(self, growth: Growth) -> int:
        """Evict cached prompts until all can grow, if that is enough; the blocks that they need then."""
        manager, prefixes = self._kv_manager, self._prefix_cache
        if prefixes is not None and prefixes.can_free(growth.num_new - manager.num_free_blocks):
            while growth.num_blocks > manager.num_free_blocks and self.evict_prefix():
                growth.recount_copies()
        return growth.num_blocks

    def _refuse(self, refused: Admitted, is_first: bool) -> None:
        """Undo the admission of a request that does not fit.

        is_first: whether none was admitted before it; else their prompts could be what it begins with.
        Raises OutOfBlocksError if nobody runs either: then it is the prefix cache that keeps the blocks.
        """
        refused.session.release()
        if is_first and not self._num_served and self._prefix_cache is not None:
            num_kept = self._kv_manager.max_blocks_per_layer - self._kv_manager.num_free_blocks
            raise OutOfBlocksError(
                f"request {refused.request.request_id} would wait for ever: no request runs, and the prefix "
                f"cache keeps {num_kept} blocks and lets none go. Its `evict_one` must free blocks as long "
                "as `can_free` says that it could"
            )
        if is_first:
            self._refused = refused.request.request_id, self._kv_manager.num_let_go

    def _count_passed_over(self, admitted: Sequence[Admitted]) -> None:
        """A request that still waits, and came before one that was admitted, was passed over once more."""
        if not admitted or self.config.admission_policy == "fifo":
            return
        requests = {request for request, _, _ in admitted}
        last_arrival = max(request.request_id for request in requests)
        for request in self.waiting.keys() - requests:
            if request.request_id < last_arrival:
                request.times_passed_over += 1

    # --- to stay -----------------------------------------------------------------------------------

    def make_room_to_decode(self) -> int:
        """Evict prefixes, then preempt the newest, until every running request can grow by a token.

        Returns how many were preempted.
        """
        num_preempted, manager = 0, self._kv_manager
        while sum(s.next_token_takes_block for s in self.running.values()) > manager.num_free_blocks:
            if not self.evict_prefix():
                self.preempt_newest()
                num_preempted += 1
        return num_preempted

    def evict_until_free(self, num_blocks: int) -> None:
        """Evict prefixes until so many blocks are free, or no prefix is left that may go."""
        while self._kv_manager.num_free_blocks < num_blocks and self.evict_prefix():
            pass

    def evict_prefix(self) -> bool:
        """Drop the least recently used entry of the prefix cache; False if there is none that may go."""
        return self._prefix_cache is not None and self._prefix_cache.evict_one()

    def preempt_newest(self) -> None:
        """Free the blocks of the request that was admitted last; it waits again, ahead of all others."""
        request = next(reversed(self.joining or self.running))
        self.keep_text_of(request)
        self.put_back([request])

    # --- what a request leaves in the prefix cache -------------------------------------------------

    def keep_prompt_of(
        self, request: Request, session: InferenceSession, last_logits: Tensor, token_id: int | None
    ) -> None:
        """Keep a request's prompt that is all in its session, if there is a cache for it.

        last_logits: [V], after its last token. token_id: its first token.
        """
        if self._prefix_cache is not None and token_id is not None:  # not if its logits are broken
            # A preempted request's output is no prompt, so its text has no prompt's logits.
            logits = None if request.output_token_ids else last_logits
            self._prefix_cache.insert(request.token_ids, session.block_ids_per_layer, logits)

    def keep_text_of(self, request: Request, reason: FinishReason | None = None) -> None:
        """A request's text goes into the prefix cache, if it runs, before its session lets go of the blocks.

        reason: why it ends; None if it will go on.
        Only what is certain: keys and values up to the one from which its newest token was made. A step may
        be in flight that writes that token's own; and if its logits are no numbers, none of its blocks stays.
        """
        session = self.running.get(request)
        if self._prefix_cache is None or session is None:
            return
        if reason is FinishReason.ERROR:
            self._prefix_cache.forget(session.block_ids_per_layer)
            return
        num_certain = min(session.num_tokens, request.num_tokens - 1)
        self._prefix_cache.keep_text(request.token_ids[:num_certain], session.block_ids_per_layer)
