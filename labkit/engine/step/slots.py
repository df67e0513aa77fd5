"""What the GPU knows of each running request: a slot each, written when it joins and kept up by the GPU.

T tables (one a layer, or one for all), S slots, M blocks a table row, B requests of a step.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from labkit.engine.request import Request
from labkit.engine.session import InferenceSession
from labkit.engine.step.slot_memory import SlotMemory
from labkit.engine.step.staging import PinnedStaging
from labkit.kernels.distribution import OFF, pack_states, unpack_states
from labkit.kvcache import KVBlockManager


class SlotState:
    """Block tables, lengths, last tokens and sampling state, resident on the device, and how they are sent.

    `slot_mapping` [B] says which slot each request of the step has, `slot_of` which one each session has. The
    slot after the last is the `padding_slot`: rows that pad a batch have it, and its context length is -1, so
    that nothing is stored for them. A subclass says by `update` and `forget` what is sent when. What an
    update sends is gathered, and goes in one copy when it is delivered (`deliver`).
    """

    watch_points = ("update", "forget", "send_mapping", "send_states", "send_rows", "deliver")

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        self._kv_manager = kv_manager
        T, M, S = kv_manager.num_tables, kv_manager.max_blocks_per_seq, max_batch_size + 1
        self.memory = memory = SlotMemory(
            {
                "block_tables": ((T, S, M), torch.int32),
                "context_lens": ((S,), torch.int32),
                "last_token_ids": ((S,), torch.int64),
                "sampling_state": ((len(OFF), S + S % 2), torch.int64),  # columns at multiples of 16 bytes
                "slot_mapping": ((max_batch_size,), torch.int64),
            },
            max_words=max_batch_size * (T * M + 1 + 2 * len(OFF) + 4),
            device=kv_manager.k_cache.device,
        )
        self.padding_slot = max_batch_size
        self.block_tables = memory["block_tables"]
        self.context_lens = memory["context_lens"]  # tokens in the cache
        self.context_lens[self.padding_slot] = -1
        self.last_token_ids = memory["last_token_ids"]
        self.sampling_state = unpack_states(memory["sampling_state"][:, :S])
        for column, off in zip(self.sampling_state, OFF, strict=True):
            column.fill_(off)
        self.slot_mapping = memory["slot_mapping"].fill_(self.padding_slot)
        self.slot_of: dict[InferenceSession, int] = {}
        self.mapped: list[InferenceSession] = []  # the requests of slot_mapping
        self._mapped_next: list[InferenceSession] | None = None  # gathered, and not delivered yet

    @property
    def staging(self) -> PinnedStaging:
        """The way of all that is sent."""
        return self.memory.staging

    def update(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        """Make the device's state that of a step of these requests, each with its session.

        changed: for each table, the requests (by place) whose list of blocks has changed. Subclasses say how.
        """
        raise NotImplementedError

    def forget(self, sessions: Collection[InferenceSession]) -> None:
        """The device may be ahead of these: they join anew at the next step. Subclasses say how."""
        raise NotImplementedError

    def knows(self, session: InferenceSession) -> bool:
        """Whether the device holds the session's state; else the host must know its last token to send it."""
        return session in self.slot_of

    # --- what is sent: gathered first, then delivered in one copy ----------------------------------

    def send_mapping(self, sessions: list[InferenceSession]) -> None:
        """Which slot each request of the step has."""
        slots = np.full(len(self.slot_mapping), self.padding_slot)
        slots[: len(sessions)] = [self.slot_of[session] for session in sessions]
        self.memory.put("slot_mapping", ..., slots)
        self.mapped, self._mapped_next = [], sessions

    def send_states(self, requests: dict[Request, InferenceSession]) -> None:
        """Everything but the rows, of requests that joined."""
        if not requests:
            return
        slots = [self.slot_of[session] for session in requests.values()]
        lengths = [session.num_tokens for session in requests.values()]
        self.memory.put("context_lens", slots, np.array(lengths, dtype=np.int32))
        self.memory.put("last_token_ids", slots, np.array([r.output_token_ids[-1] for r in requests]))
        states = pack_states([request.sampling_state for request in requests])
        self.memory.put("sampling_state", np.s_[:, slots], states)

    def send_rows(self, sessions: Sequence[InferenceSession]) -> None:
        """Block table rows of sessions that have a slot."""
        T, _, M = self.block_tables.shape
        slots = [self.slot_of[session] for session in sessions]
        rows = np.zeros((T, len(sessions), M), dtype=np.int32)
        for table_idx, table in enumerate(rows):
            for row, session in zip(table, sessions, strict=True):
                block_ids = session.block_ids_per_layer[table_idx]
                row[: len(block_ids)] = block_ids
            table -= self._kv_manager.layer_offset(table_idx)
        np.maximum(rows, 0, out=rows)  # where there is no block
        self.memory.put("block_tables", np.s_[:, slots], rows)

    def deliver(self) -> None:
        """Send all that was gathered in one copy, if there is anything."""
        mapped_next, self._mapped_next = self._mapped_next, None
        self.memory.write()
        if mapped_next is not None:
            self.mapped = mapped_next

    def discard(self) -> None:
        """Forget what was gathered and is not delivered: the update has failed."""
        self._mapped_next = None
        self.memory.discard()


class DeviceSlots(SlotState):
    """Slots that are sent what the device cannot know: who joined, and rows whose blocks changed."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._free = list(range(max_batch_size))[::-1]

    def update(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        """Make the device's state that of a step of these requests, each with its session.

        changed: for each table, the requests (by place) whose list of blocks has changed.
        """
        joined: set[int] = set()
        if sessions != self.mapped:
            joined = self._assign(sessions)
            self.send_mapping(sessions)
            self.send_states({requests[b]: sessions[b] for b in sorted(joined)})
        dirty = sorted(joined.union(*changed))
        if dirty:
            self.send_rows([sessions[b] for b in dirty])

    def forget(self, sessions: Collection[InferenceSession]) -> None:
        """The device may be ahead of these: they join anew at the next step."""
        for session in sessions:
            if (slot := self.slot_of.pop(session, None)) is not None:
                self._free.append(slot)
        self.mapped = []

    def _assign(self, sessions: list[InferenceSession]) -> set[int]:
        """A slot for each session that has none; slots of those that left are free. Who joined, by place."""
        gone = self.slot_of.keys() - set(sessions)
        self.forget(gone)
        joined = {b for b, session in enumerate(sessions) if session not in self.slot_of}
        for b in joined:
            self.slot_of[sessions[b]] = self._free.pop()
        return joined
