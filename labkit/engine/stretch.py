"""Steps in a row of the same requests, booked as a whole."""

from collections.abc import Sequence

from labkit.engine.request import Request
from labkit.engine.session import InferenceSession
from labkit.kvcache import KVBlockManager


class Stretch:
    """The books of requests that go on together, a line a step instead of a line a request (rung 10).

    It begins behind a step that was launched for exactly these requests. From there on, a step costs the
    host the same for few requests and for many, but for those whose block is full. Until `settle`, the
    requests' tokens, the sessions' and the records' lengths are those of the beginning: whoever looks at
    them, or changes who runs, settles first.
    """

    def __init__(
        self, requests: list[Request], sessions: list[InferenceSession], num_made: Sequence[int]
    ) -> None:
        """num_made: each request's tokens, with those on their way."""
        self.requests = requests
        self.sessions = sessions
        self.request_ids = [request.request_id for request in requests]
        self.is_greedy = all(request.params.is_greedy for request in requests)
        self._stops_on_eos = any(request.params.stop_on_eos for request in requests)
        self._kv_manager: KVBlockManager = sessions[0].kv_manager
        # So many steps can be launched before somebody has enough, those on their way counted.
        self._num_left = min(
            request.params.max_new_tokens - made for request, made in zip(requests, num_made, strict=True)
        )
        self._longest = max(session.num_tokens for session in sessions)
        self._num_launched = 0
        # Of each table, the record of each request's last block, and the launches that it has counted.
        self._infos = [
            [self._kv_manager.info(session.block_ids_per_layer[table_idx][-1]) for session in sessions]
            for table_idx in range(self._kv_manager.num_tables)
        ]
        self._counted = [0] * len(requests)
        self._num_counted = 0  # by the sessions
        self._tokens: list[list[int]] = []  # not given to the requests yet, a list a step
        self._times: list[float] = []
        self._full_at: dict[int, list[int]] = {}  # which requests need a block, by launch
        for row, info in enumerate(self._infos[0]):
            self._full_at.setdefault(self._kv_manager.block_size - info.length + 1, []).append(row)

    @property
    def longest(self) -> int:
        """Tokens in the cache of the longest sequence."""
        return self._longest + self._num_launched

    # --- launches ----------------------------------------------------------------------------------

    def can_go(self, running: Sequence[Request]) -> bool:
        """Whether these are its requests, and one more step for them needs no second thought."""
        return (
            self._num_launched < self._num_left
            and running == self.requests
            and len(self._full_now()) <= self._kv_manager.num_free_blocks
        )

    def _full_now(self) -> Sequence[int]:
        return self._full_at.get(self._num_launched + 1, ())

    def make_room(self) -> list[InferenceSession]:
        """A block for each request whose last one is full: the sessions whose lists have changed.

        If anything fails before `launched`, settle and let every session roll back.
        """
        rows = self._full_now()
        for row in rows:
            self._count(row)
        sessions = [self.sessions[row] for row in rows]
        for table_idx in range(self._kv_manager.num_tables):
            block_ids_list = [session.block_ids_per_layer[table_idx] for session in sessions]
            self._kv_manager.reserve_token_batch(table_idx, block_ids_list)
            self._kv_manager.append_paths["in_place"] += len(self.sessions) - len(rows)
        return sessions

    def launched(self) -> None:
        """One more step is on its way."""
        self._num_launched += 1
        rows = self._full_at.pop(self._num_launched, ())
        for row in rows:
            self._counted[row] = self._num_launched
            for infos, block_ids in zip(self._infos, self.sessions[row].block_ids_per_layer, strict=True):
                infos[row] = self._kv_manager.info(block_ids[-1])
        if rows:
            full_again = self._num_launched + self._kv_manager.block_size
            self._full_at.setdefault(full_again, []).extend(rows)

    # --- tokens ------------------------------------------------------------------------------------

    def is_quiet(self, token_ids: Sequence[int | None], eos_token_id: int | None) -> bool:
        """Whether nobody ends with the token just read. (A last token at a limit is read when it is over.)"""
        return None not in token_ids and not (self._stops_on_eos and eos_token_id in token_ids)

    def take(self, token_ids: list[int], now: float) -> None:
        """Every request's next token, read at this moment."""
        self._tokens.append(token_ids)
        self._times.append(now)

    # --- the books ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write what has gathered into the books of the requests, the sessions and the blocks."""
        for row in range(len(self.sessions)):
            self._count(row)
        for session in self.sessions:
            session.num_tokens += self._num_launched - self._num_counted
        self._num_counted = self._num_launched
        if self._tokens:
            for request, token_ids in zip(self.requests, zip(*self._tokens, strict=True), strict=True):
                request.output_token_ids += token_ids
                request.token_times += self._times
        self._tokens, self._times = [], []

    def _count(self, row: int) -> None:
        for infos in self._infos:
            infos[row].length += self._num_launched - self._counted[row]
        self._counted[row] = self._num_launched
