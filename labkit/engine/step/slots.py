"""What the GPU knows of each running request: a slot each, written when it joins and kept up by the GPU.

T tables (one a layer, or one for all), S slots, M blocks a table row, B requests of a step.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from labkit.engine.request import Request
from labkit.engine.sampling import as_int64
from labkit.engine.session import InferenceSession
from labkit.engine.step.staging import PinnedStaging
from labkit.kernels import SamplingState
from labkit.kvcache import KVBlockManager

LARGEST_TOP_K = 2**31  # larger than any vocabulary

# What the host sends when a request joins, beside its row: the slot, then a number for each of these tensors
# of `SlotState`. All travel as int64, fractions by their bits.
WHOLE_NUMBERS = ("context_lens", "last_token_ids", "top_ks", "seeds", "draws")
FRACTIONS = ("temperatures", "top_ps")
STATE_SIZE = 1 + len(WHOLE_NUMBERS) + len(FRACTIONS)  # numbers per request


class SlotState:
    """Block tables, lengths, last tokens and sampling state, resident on the device, and how they are sent.

    `slot_mapping` [B] says which slot each request of the step has, `slot_of` which one each session has. The
    slot after the last is the `padding_slot`: rows that pad a batch have it, and its context length is -1, so
    that nothing is stored for them. A subclass says by `update` and `forget` what is sent when.
    """

    watch_points = ("update", "forget", "send_mapping", "send_states", "send_rows")

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        self._kv_manager = kv_manager
        device = kv_manager.k_cache.device
        T, M, S = kv_manager.num_tables, kv_manager.max_blocks_per_seq, max_batch_size + 1
        self.padding_slot = max_batch_size

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.block_tables = zeros(T, S, M, dtype=torch.int32)
        self.context_lens = zeros(S, dtype=torch.int32)  # tokens in the cache
        self.context_lens[self.padding_slot] = -1
        self.last_token_ids = zeros(S, dtype=torch.int64)
        self.temperatures = zeros(S, dtype=torch.float64)
        self.top_ks = zeros(S, dtype=torch.int64)
        self.top_ps = torch.ones(S, dtype=torch.float64, device=device)
        self.seeds = zeros(S, dtype=torch.int64)
        self.draws = zeros(S, dtype=torch.int64)  # random numbers drawn so far
        self.slot_mapping = torch.full((max_batch_size,), self.padding_slot, dtype=torch.int64, device=device)
        self.slot_of: dict[InferenceSession, int] = {}
        self.mapped: list[InferenceSession] = []  # the requests of slot_mapping
        self._row_size = 1 + T * M  # numbers per request: the slot, and its row of each table
        self.staging = PinnedStaging(max_batch_size * max(self._row_size, STATE_SIZE), device)

    @property
    def sampling_state(self) -> SamplingState:
        """What the slots draw with."""
        return SamplingState(self.temperatures, self.top_ks, self.top_ps, self.seeds, self.draws)

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

    def send_mapping(self, sessions: list[InferenceSession]) -> None:
        """Which slot each request of the step has."""
        self.mapped = []  # until it is sent
        slots = torch.full((len(self.slot_mapping),), self.padding_slot, dtype=torch.int64)
        slots[: len(sessions)] = torch.tensor([self.slot_of[session] for session in sessions])
        self.slot_mapping.copy_(self.staging.send(slots))
        self.mapped = sessions

    def send_states(self, requests: dict[Request, InferenceSession]) -> None:
        """Everything but the rows, of requests that joined."""
        if not requests:
            return
        numbers = np.array(
            [(self.slot_of[session], *whole_numbers_of(r, session)) for r, session in requests.items()],
            dtype=np.int64,
        )
        fractions = np.array([(r.params.temperature, r.params.top_p) for r in requests], dtype=np.float64)
        packed = np.concatenate([numbers.T.ravel(), fractions.T.ravel().view(np.int64)])
        sent = self.staging.send(torch.from_numpy(packed)).view(STATE_SIZE, len(requests))
        slots, *columns = sent[: -len(FRACTIONS)]
        columns += sent[-len(FRACTIONS) :].view(torch.float64)
        for name, column in zip(WHOLE_NUMBERS + FRACTIONS, columns, strict=True):
            state = getattr(self, name)
            state[slots] = column if column.dtype == state.dtype else column.to(state.dtype)

    def send_rows(self, sessions: Sequence[InferenceSession]) -> None:
        """Block table rows of sessions that have a slot."""
        T, _, M = self.block_tables.shape
        rows = np.zeros((len(sessions), self._row_size), dtype=np.int64)
        rows[:, 0] = [self.slot_of[session] for session in sessions]
        for table_idx in range(T):
            tables = rows[:, 1 + table_idx * M : 1 + (table_idx + 1) * M]
            for row, session in zip(tables, sessions, strict=True):
                block_ids = session.block_ids_per_layer[table_idx]
                row[: len(block_ids)] = block_ids
            tables -= self._kv_manager.layer_offset(table_idx)
        np.maximum(rows, 0, out=rows)  # where there is no block
        sent = self.staging.send(torch.from_numpy(rows.ravel())).view(rows.shape)
        sent_tables = sent[:, 1:].view(len(sessions), T, M).int()
        self.block_tables[:, sent[:, 0]] = sent_tables.transpose(0, 1)


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


def whole_numbers_of(request: Request, session: InferenceSession) -> tuple[int, ...]:
    """The state of a request that joins, in the order of `WHOLE_NUMBERS`."""
    return (
        session.num_tokens,
        request.output_token_ids[-1],
        min(request.params.top_k, LARGEST_TOP_K),
        as_int64(request.seed),
        len(request.output_token_ids),
    )
