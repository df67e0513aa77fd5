"""What the GPU knows of each running request: a slot each, written when it joins and kept up by the GPU.

T tables (one a layer, or one for all), S slots, M blocks a table row, B requests of a step.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.engine.request import Request
from labkit.engine.session import InferenceSession
from labkit.engine.step.staging import PinnedStaging, scatter_words_plain
from labkit.kernels.distribution import OFF, pack_states, unpack_states
from labkit.kvcache import KVBlockManager

ALIGNMENT = 64  # words, of a tensor's beginning: a kernel is compiled anew for a pointer that is less so


class SlotMemory:
    """Tensors of int32 and of int64 in one tensor of `words`, which are 32 bits.

    What is `put` is gathered on the host. `write` sends it at once, each word with its place.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[Sequence[int], torch.dtype]], max_words: int, device: torch.device
    ) -> None:
        """shapes: of each tensor, by name, with its dtype: int32 or int64. max_words: put at most for one
        write."""
        sizes = {name: prod(shape) * dtype.itemsize // 4 for name, (shape, dtype) in shapes.items()}
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())]).tolist()
        self.words = torch.zeros(starts[-1], dtype=torch.int32, device=device)
        self._tensors: dict[str, Tensor] = {}
        self._places_of: dict[str, np.ndarray] = {}  # of each tensor's words, the last dimension
        for start, (name, (shape, dtype)) in zip(starts, shapes.items(), strict=False):
            end = start + sizes[name]
            self._tensors[name] = self.words[start:end].view(dtype).view(*shape)
            self._places_of[name] = np.arange(start, end).reshape(*shape, -1)
        self.staging = PinnedStaging(packed_size(max_words), device)
        self.staging.copy = scatter_words_plain  # from rung 11 on a kernel, on a GPU
        self.discard()

    def __getitem__(self, name: str) -> Tensor:
        """One of the tensors, zeros at first."""
        return self._tensors[name]

    def put(self, name: str, where: Any, numbers: np.ndarray) -> None:
        """Have `tensor[where] = numbers` done by the next `write`, for one of the tensors.

        where: an index of NumPy's, with no place twice. numbers: of the tensor's dtype, in the shape of
        `tensor[where]`. What was put to the same tensor before is written first.
        """
        if name in self._put:
            self.write()
        self._put[name] = self._places_of[name][where].ravel(), numbers.ravel().view(np.int32)

    def write(self) -> None:
        """Send what was put since the last time, if there is anything."""
        if not self._put:
            return
        places, words = zip(*self._put.values(), strict=True)
        self.discard()
        count = sum(map(len, places))
        packed = np.empty(packed_size(count), dtype=np.int64)
        np.concatenate(places, out=packed[:count])
        np.concatenate(words, out=packed[count:].view(np.int32)[:count])
        self.staging.send(torch.from_numpy(packed), self.words)

    def discard(self) -> None:
        """Forget what was put and is not written."""
        self._put: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # by name: places, and a word for each


def packed_size(num_words: int) -> int:
    """int64 numbers that travel for so many words of 32 bits: a place each, and the words two by two."""
    return num_words + -(-num_words // 2)


class SlotState:
    """Block tables, lengths, last tokens and sampling state, resident on the device, and how they are sent.

    `slot_mapping` [B] says which slot each request of the step has, `slot_of` which one each session has. The
    slot after the last is the `padding_slot`: rows that pad a batch have it, and its context length is -1, so
    that nothing is stored for them. A subclass says by `update` and `forget` what is sent when. What an
    update sends is gathered, and goes in one copy when it is delivered (`deliver`).
    """

    watch_points = ("update", "forget", "send_mapping", "send_states", "send_rows", "deliver")

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
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
        # Of each table's block 0: what travels is the place of a block in its layer.
        self._offsets = np.array([kv_manager.layer_offset(i) for i in range(T)], dtype=np.int32)
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
        """Make the device's state that of a step, as `DeviceSlots` does. Subclasses say how."""
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
            table -= self._offsets[table_idx]
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

        changed: for each table, the requests (by index) whose list of blocks has changed.
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
        """A slot for each session that has none; slots of those that left are free. Who joined, by index."""
        gone = self.slot_of.keys() - set(sessions)
        self.forget(gone)
        joined = {b for b, session in enumerate(sessions) if session not in self.slot_of}
        for b in joined:
            self.slot_of[sessions[b]] = self._free.pop()
        return joined
