"""One token for every running session: block tables, forward, append."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.engine.request import Request, sample_requests
from labkit.engine.session import InferenceSession
from labkit.kernels import PagedAttentionFunction
from labkit.kvcache import BlockTables, KVAppend, KVBlockManager
from labkit.model import GPT2
from labkit.ranges import named_range


class PagedDecodeAttention:
    """The attention of a decode step, for the model to call layer by layer.

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
        self.keys: list[Tensor] = []  # a layer each, [B, H, D]
        self.values: list[Tensor] = []

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # [B, H, 1, D] -> [B, H, D]
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


class DecodeStep:
    """The parts that a rung chose, put together."""

    watch_points = ("decode_step_sessions", "next_tokens", "attention")
    sample = staticmethod(sample_requests)

    def __init__(
        self,
        gpt2: GPT2,
        kv_manager: KVBlockManager,
        block_tables: BlockTables,
        kv_append: KVAppend,
        attention: PagedAttentionFunction,
    ) -> None:
        self.gpt2 = gpt2
        self.kv_manager = kv_manager
        self.block_tables = block_tables
        self.kv_append = kv_append
        self.attention = attention

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
                logits = self.gpt2.decode_one_token(input_ids, positions, attention)
            with named_range("labkit.kv.append_token"):
                self.kv_append.append(sessions, attention.keys, attention.values)
        except BaseException:
            for session in sessions:
                session.roll_back()
            raise
        for session in sessions:
            session.num_tokens += 1
        return logits

    def next_tokens(self, requests: Sequence[Request]) -> list[int | None]:
        """One token for each request, by `decode_step_sessions` and the host's sampler; None where the logits
        are not finite numbers. If anything fails, all are as before and the error is raised."""
        sessions = [request.session for request in requests]
        logits = self.decode_step_sessions(sessions, [request.output_token_ids[-1] for request in requests])
        try:
            return self.sample(requests, logits)
        except BaseException:
            for session in sessions:
                session.num_tokens -= 1
                session.roll_back()
            raise
