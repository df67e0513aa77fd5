"""A decode step driven by the host (rungs 00 to 05): block tables, forward, append, sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.engine.request import RunningRequests, sample_requests
from labkit.engine.session import InferenceSession
from labkit.kernels import PagedAttentionFunction
from labkit.kvcache import BlockTables, KVAppend, KVBlockManager
from labkit.model import Network
from labkit.ranges import named_range


class PagedDecodeAttention:
    """The attention of a decode step, which the model calls once per layer.

    A layer's query sees the cache through the block table, and its own key and value, which are kept
    here until the step appends them.
    """

    def __init__(
        self,
        attention: PagedAttentionFunction,
        kv_manager: KVBlockManager,
        block_tables: Tensor,  # [L, B, M]
        context_lens: Sequence[int],
    ) -> None:
        self._attention = attention
        self._kv_manager = kv_manager
        self._block_tables = block_tables
        self._max_context_len = max(context_lens)
        self._context_lens = torch.tensor(context_lens, dtype=torch.int32, device=block_tables.device)
        self.keys: list[Tensor] = []  # one per layer, [B, G, D]
        self.values: list[Tensor] = []

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # [B, .., 1, D] -> [B, .., D]
        self.keys.append(key)
        self.values.append(value)
        out = self._attention(
            query,
            key,
            value,
            self._kv_manager.k_cache[layer_idx],
            self._kv_manager.v_cache[layer_idx],
            self._block_tables[layer_idx],
            self._context_lens,
            self._max_context_len,
        )
        return out[:, :, None]


@dataclass(eq=False, repr=False)
class DecodeStep:
    """A decode step whose state lives on the host: the parts that a rung chose, put together."""

    watch_points = ("decode_step_sessions", "next_tokens", "attention", "sample")
    sample = staticmethod(sample_requests)

    network: Network
    kv_manager: KVBlockManager
    block_tables: BlockTables
    kv_append: KVAppend
    attention: PagedAttentionFunction

    def decode_step_sessions(
        self, sessions: Sequence[InferenceSession], last_token_ids: Sequence[int]
    ) -> Tensor:
        """Feed each session its last token; the logits [B, V] after it.

        Every session grows by one token. If anything fails, all are as before and the error is raised.
        """
        device = self.kv_manager.k_cache.device
        try:
            context_lens = [session.num_tokens for session in sessions]
            attention = PagedDecodeAttention(
                self.attention, self.kv_manager, self.block_tables.build(sessions), context_lens
            )
            input_ids = torch.tensor(last_token_ids, device=device)  # [B]
            positions = torch.tensor(context_lens, device=device)  # [B]
            with named_range("labkit.model.forward"):
                logits = self.network.decode_one_token(input_ids, positions, attention)
            with named_range("labkit.kv.append_token"):
                self.kv_append.append(sessions, attention.keys, attention.values)
        except BaseException:
            for session in sessions:
                session.roll_back()
            raise
        for session in sessions:
            session.num_tokens += 1
        return logits

    def next_tokens(self, running: RunningRequests) -> list[int | None]:
        """One token per request, by `decode_step_sessions` and the host's sampler; None where the logits are
        not finite numbers.

        If anything fails, all are as before and the error is raised.
        """
        sessions = list(running.values())
        last_token_ids = [request.output_token_ids[-1] for request in running]
        held = [session.num_tokens for session in sessions]
        try:
            return self.sample(running, self.decode_step_sessions(sessions, last_token_ids))
        except BaseException:
            for session, num_tokens in zip(sessions, held, strict=True):
                session.num_tokens = num_tokens
                session.roll_back()
            raise
