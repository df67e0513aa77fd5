"""Who gets memory: what fits is admitted, cached prompts make way, and the newest request is preempted."""

from collections.abc import Iterator

from labkit.engine.request import Request
from labkit.engine.scheduler import OnlineScheduler
from labkit.engine.session import InferenceSession
from labkit.kvcache import KVBlockManager, PrefixCache, PrefixEntry


class Admission:
    """The scheduler's policy, held against the free blocks of the pool."""

    def __init__(
        self,
        scheduler: OnlineScheduler,
        kv_manager: KVBlockManager,
        prefix_cache: PrefixCache | None,
    ) -> None:
        self._scheduler = scheduler
        self._kv_manager = kv_manager
        self._prefix_cache = prefix_cache
        self._claimed: dict[Request, PrefixEntry | None] = {}  # in this admission
        self._needed = 0  # blocks, in each layer: for those who run to go on, and for the claimed
        # Id of the request that did not fit, and how many blocks had been let go of by then. Until one more
        # is, it does not fit either: whoever runs takes blocks, and gives none back.
        self._refused: tuple[int, int] | None = None

    # --- to join -----------------------------------------------------------------------------------

    def may_admit(self) -> bool:
        """Whether a request waits that `admit` has not refused already. Reads no session's state."""
        first = self._scheduler.first()
        return first is not None and self._refused != (first.request_id, self._kv_manager.num_let_go)

    def admit(self) -> dict[Request, PrefixEntry | None]:
        """Move to running what fits, each with a session; and the cached prompt that it begins with.

        Only if `may_admit`. If anything fails, all wait as before and the error is raised.
        """
        self._claimed = claimed = {}
        self._needed, self._refused = self._sum_of_needs(), None
        try:
            self._scheduler.admit(self._claim)
        except BaseException:
            for request in claimed:
                release(request)
            raise
        finally:
            self._claimed = {}
        if not claimed:  # else their prompts could be what the next request begins with
            self._refused = self._scheduler.first().request_id, self._kv_manager.num_let_go
        return claimed

    def _claim(self, request: Request) -> bool:
        """Reserve blocks for a request's tokens; cached prompts are evicted only if that is enough."""
        prefix = self._prefix_cache.lookup(request.token_ids) if self._prefix_cache else None
        request.session = InferenceSession(self._kv_manager, prefix)
        self._claimed[request] = prefix
        self._needed += request.session.blocks_to_reach(request.num_tokens)
        if not self._fits() and self._would_fit_without_prefixes():
            while not self._fits() and self.evict_prefix():
                self._needed = self._sum_of_needs()  # a copy-on-write may be needless now
        if self._fits():
            return True
        self._needed -= request.session.blocks_to_reach(request.num_tokens)
        del self._claimed[request]
        release(request)
        return False

    def _fits(self) -> bool:
        return self._needed <= self._kv_manager.num_free_blocks

    def _would_fit_without_prefixes(self) -> bool:
        if not self._prefix_cache:
            return False
        free = self._kv_manager.num_free_blocks + self._prefix_cache.num_reclaimable_blocks
        return sum(session.new_blocks_to_reach(n) for session, n in self._goals()) <= free

    def _sum_of_needs(self) -> int:
        return sum(session.blocks_to_reach(n) for session, n in self._goals())

    def _goals(self) -> Iterator[tuple[InferenceSession, int]]:
        """Each session and the tokens that it must have room for."""
        yield from ((r.session, r.session.num_tokens + 1) for r in self._scheduler.running)
        yield from ((r.session, r.num_tokens) for r in self._claimed)

    # --- to stay -----------------------------------------------------------------------------------

    def make_room_to_decode(self) -> int:
        """Evict prefixes, then preempt the newest, until every running request can grow by a token.

        Returns how many were preempted.
        """
        num_preempted = 0
        while self._growth_of_running() > self._kv_manager.num_free_blocks:
            if not self.evict_prefix():
                self.preempt_newest()
                num_preempted += 1
        return num_preempted

    def preempt_newest(self) -> None:
        """Take its blocks from the request that was admitted last; it waits again, ahead of all others."""
        newest = self._scheduler.running[-1]
        release(newest)
        self._scheduler.put_back([newest])

    def _growth_of_running(self) -> int:
        """Blocks, in each layer, that the next decode step takes."""
        return sum(request.session.next_token_takes_block for request in self._scheduler.running)

    def evict_prefix(self) -> bool:
        """Drop the least recently used prompt; False if none is cached."""
        return self._prefix_cache is not None and self._prefix_cache.evict_one()


def release(request: Request) -> None:
    """Give a request's blocks back; it waits, or has ended."""
    if request.session is not None:
        request.session.release()
        request.session = None
