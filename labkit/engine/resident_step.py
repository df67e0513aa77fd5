"""A decode step whose state lives on the device (rung 06 and above): reserve, launch, read."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from labkit.engine.device_sampling import sample_any, sample_greedy
from labkit.engine.device_slots import DeviceSlots
from labkit.engine.request import Request
from labkit.engine.session import InferenceSession
from labkit.engine.staging import Arriving, PinnedReadback
from labkit.engine.stretch import Stretch
from labkit.kernels import PagedAttentionAppend, PagedAttentionFunction
from labkit.kvcache import MutableInfoBlockManager
from labkit.model import GPT2
from labkit.ranges import named_range


class LayerAttention(Protocol):
    """Attends in one layer and stores the new key and value there."""

    path: str  # the name that its writes are counted by

    def begin(self, slots: DeviceSlots, slot_mapping: Tensor, max_context_len: int) -> None:
        """Before the first layer of a step."""

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...


class AttendThenWrite:
    """Paged attention, then a write: two kernels, told by index tensors that the device makes itself."""

    path = "identity_pos"
    watch_points = ("attention", "kv_append")

    def __init__(
        self,
        kv_manager: MutableInfoBlockManager,
        attention: PagedAttentionFunction,
        kv_append: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None],
    ) -> None:
        """kv_append: `kv_append_triton_identity_pos` or its plain twin."""
        self.kv_manager = kv_manager
        self.attention = attention
        self.kv_append = kv_append

    def begin(self, slots: DeviceSlots, slot_mapping: Tensor, max_context_len: int) -> None:
        self._block_tables = slots.block_tables[:, slot_mapping]  # [T, B, M]
        self._context_lens = slots.context_lens[slot_mapping]  # [B]
        self._max_context_len = max_context_len
        place = (self._context_lens // self.kv_manager.block_size).long()  # of the new token, in its row
        self._pos = self._context_lens % self.kv_manager.block_size  # [B]
        place = place.expand(len(self._block_tables), -1)[:, :, None]
        self._block_idx = self._block_tables.gather(2, place)[:, :, 0]  # [T, B]

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # [B, H, 1, D] -> [B, H, D]
        k_cache, v_cache = self.kv_manager.k_cache[layer_idx], self.kv_manager.v_cache[layer_idx]
        table_idx = layer_idx % len(self._block_tables)
        out = self.attention(
            query,
            key,
            value,
            k_cache,
            v_cache,
            self._block_tables[table_idx],
            self._context_lens,
            self._max_context_len,
        )
        self.kv_append(k_cache, v_cache, key, value, self._block_idx[table_idx], self._pos)
        return out[:, :, None]


class AttendAndWrite:
    """Paged attention that stores the new key and value as it goes: one kernel (rung 07)."""

    path = "fused"
    watch_points = ("attention",)

    def __init__(self, kv_manager: MutableInfoBlockManager, attention: PagedAttentionAppend) -> None:
        self.kv_manager = kv_manager
        self.attention = attention

    def begin(self, slots: DeviceSlots, slot_mapping: Tensor, max_context_len: int) -> None:
        self._slots, self._slot_mapping, self._max_context_len = slots, slot_mapping, max_context_len

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # [B, H, 1, D] -> [B, H, D]
        return self.attend_heads(layer_idx, query, key, value)[:, :, None]

    def attend_heads(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The same of [B, H, D]."""
        slots = self._slots
        return self.attention(
            query,
            key,
            value,
            self.kv_manager.k_cache[layer_idx],
            self.kv_manager.v_cache[layer_idx],
            slots.block_tables[layer_idx % len(slots.block_tables)],
            slots.context_lens,
            self._slot_mapping,
            self._max_context_len,
        )


class DeviceStep:
    """What the device does in one step. It takes no decision on the host, so that it can be captured."""

    def __init__(self, slots: DeviceSlots, gpt2: GPT2, attention: LayerAttention) -> None:
        self.slots = slots
        self.gpt2 = gpt2
        self.attention = attention

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        """Token ids [B], -1 for a row whose logits are not finite. Every slot named moves on by a token.

        max_context_len: at least the longest. is_greedy: whether no request draws a random number.
        """
        slots = self.slots
        slot_mapping = slots.slot_mapping[:batch_size]
        self.attention.begin(slots, slot_mapping, max_context_len)
        positions = slots.context_lens[slot_mapping].clamp(min=0).long()
        with named_range("labkit.model.forward"):
            logits = self.gpt2.decode_one_token(slots.last_token_ids[slot_mapping], positions, self.attention)
        with named_range("labkit.sample"):
            if is_greedy:
                return self.advance(sample_greedy(logits), slot_mapping)
            return self.draw_and_advance(logits, slot_mapping)

    def draw_and_advance(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
        slots = self.slots
        draws = slots.draws[slot_mapping]
        token_ids = sample_any(
            logits,
            slots.temperatures[slot_mapping],
            slots.top_ks[slot_mapping],
            slots.top_ps[slot_mapping],
            slots.seeds[slot_mapping],
            draws,
        )
        slots.draws[slot_mapping] = draws + 1
        return self.advance(token_ids, slot_mapping)

    def advance(self, token_ids: Tensor, slot_mapping: Tensor) -> Tensor:
        """Every slot of a request moves on by its token; that of nobody stays where it is."""
        slots = self.slots
        lens = slots.context_lens[slot_mapping]
        slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)
        slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)
        return token_ids


class Launched:
    """A step on its way: whose tokens are coming. `read` is called at most once, or `cancel` undoes it."""

    watch_points = ("read",)

    def __init__(
        self,
        step: "ResidentDecodeStep",
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        arriving: Arriving,
    ) -> None:
        """sessions: those of the requests, which they may have lost by the time it is read."""
        self.requests = requests
        self.sessions = sessions
        self._step = step
        self._arriving = arriving

    def read(self) -> list[int | None]:
        """Wait for the tokens; None for a request whose logits are not finite numbers."""
        token_ids = self._arriving.read()
        return token_ids if min(token_ids) >= 0 else [None if i < 0 else i for i in token_ids]

    def cancel(self) -> None:
        """As if it had not been launched, for those who still run."""
        pairs = zip(self.requests, self.sessions, strict=True)
        sessions = [session for request, session in pairs if request.session is session]
        for session in sessions:
            session.num_tokens -= 1
        self._step.undo(sessions)


class ResidentDecodeStep:
    """One token for every running request: reserved on the host, made on the device, read at the end."""

    watch_points = ("launch", "launch_again", "start", "launcher")

    def __init__(
        self,
        kv_manager: MutableInfoBlockManager,
        slots: DeviceSlots,
        launcher: Callable[[int, int, bool], Tensor],
        path: str,
    ) -> None:
        """launcher: a `DeviceStep`, or what stands for one. path: how keys and values are written."""
        self.kv_manager = kv_manager
        self.slots = slots
        self.launcher = launcher
        self.path = path
        self.pinned_readback = PinnedReadback(len(slots.slot_mapping), kv_manager.k_cache.device)

    def next_tokens(self, requests: Sequence[Request]) -> list[int | None]:
        """As `DecodeStep.next_tokens`. If anything fails, all are as before and the error is raised."""
        launched = self.launch(requests)
        try:
            return launched.read()
        except BaseException:
            launched.cancel()
            raise

    def launch(self, requests: Sequence[Request]) -> Launched:
        """Have the device make each request's next token. Every session grows by one token.

        Room is made for the whole batch before the device is asked for anything. If anything
        fails, all sessions are as before and the error is raised.
        """
        sessions = [request.session for request in requests]
        try:
            with named_range("labkit.kv.reserve"):
                changed = [
                    self.kv_manager.reserve_token_batch(
                        table_idx, [session.block_ids_per_layer[table_idx] for session in sessions]
                    )
                    for table_idx in range(self.kv_manager.num_tables)
                ]
            with named_range("labkit.slots.follow"):
                self.slots.follow(requests, changed)
            longest = max(session.num_tokens for session in sessions)
            is_greedy = all(request.params.is_greedy for request in requests)
            launched = self.start(requests, sessions, longest, is_greedy)
        except BaseException:
            self.undo(sessions)
            raise
        for session in sessions:
            session.num_tokens += 1
        return launched

    def launch_again(self, stretch: Stretch) -> Launched:
        """The same for the requests of a stretch, whose books it keeps. If it fails, the stretch is over."""
        try:
            with named_range("labkit.kv.reserve"):
                changed = stretch.make_room()
            if changed:
                self.slots.send_rows(changed)
            launched = self.start(stretch.requests, stretch.sessions, stretch.longest, stretch.is_greedy)
        except BaseException:
            stretch.settle()
            self.undo(stretch.sessions)
            raise
        stretch.launched()
        return launched

    def start(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        longest: int,
        is_greedy: bool,
    ) -> Launched:
        """Launch it and the copy of its tokens: what all launches have in common."""
        token_ids = self.launcher(len(sessions), longest, is_greedy)
        arriving = self.pinned_readback.start(token_ids)
        self.kv_manager.append_paths[self.path] += self.kv_manager.num_layers
        return Launched(self, requests, sessions, arriving)

    def undo(self, sessions: Sequence[InferenceSession]) -> None:
        """Bring the books back to what the sessions count; the device is told anew at the next step."""
        self.slots.forget(sessions)
        for session in sessions:
            session.roll_back()
