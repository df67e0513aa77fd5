"""Three ways to append a decode step's keys and values: the same bytes, by fewer and fewer calls."""

from collections import Counter

import helpers
import pytest
import torch
from torch import Tensor

from labkit.engine import InferenceSession
from labkit.kvcache import (
    AppendBatched,
    AppendBatchedFastPath,
    AppendPerToken,
    IndexedWrite,
    KVBlockManager,
    MutableInfoBlockManager,
)

# Tokens of four sessions, in blocks of 4: the last blocks have room in the second and fourth.
HELD = [0, 3, 4, 6]
WAYS = [AppendPerToken, AppendBatchedFastPath, AppendBatched]


def stepped(way: type, kind: type[KVBlockManager] = KVBlockManager) -> tuple[KVBlockManager, list, list]:
    """A manager after a step of four sessions, and the step's keys and values, [B, H, D] for each layer."""
    manager = helpers.make_manager(kind)
    like = torch.Generator().manual_seed(0)
    sessions = [InferenceSession(manager) for _ in HELD]
    for session, count in zip(sessions, HELD, strict=True):
        prompt = torch.rand(2, 2, count, 3, generator=like)
        session.append_prompt(prompt, prompt + 1)
    keys = [torch.rand(len(HELD), 2, 3, generator=like) for _ in range(2)]
    values = [key + 1 for key in keys]
    way(manager).append(sessions, keys, values)
    return manager, sessions, [keys, values]


def cached(manager: KVBlockManager, session: InferenceSession, layer_idx: int) -> tuple[Tensor, Tensor]:
    return manager.dense_kv(layer_idx, session.block_ids_per_layer[layer_idx])


@pytest.mark.parametrize("kind", [KVBlockManager, MutableInfoBlockManager])
@pytest.mark.parametrize("way", WAYS)
def test_every_sessions_last_token_in_every_layer_is_the_one_given(way, kind):
    manager, sessions, (keys, values) = stepped(way, kind)
    for layer_idx in range(2):
        for b, session in enumerate(sessions):
            cached_keys, cached_values = cached(manager, session, layer_idx)
            assert cached_keys.shape == (2, HELD[b] + 1, 3)
            assert torch.equal(cached_keys[:, -1], keys[layer_idx][b])
            assert torch.equal(cached_values[:, -1], values[layer_idx][b])


# Of the four sessions two have room in their last block, and two need a new one: one call per layer and ...
CALLS = {
    AppendPerToken: {"append_token": 2 * 4},  # ... token
    AppendBatchedFastPath: {"append_token_batch_fast_path": 2, "append_token": 2 * 2},  # ... slow token
    AppendBatched: {"append_token_batch": 2},  # ... no more
}


@pytest.mark.parametrize("way", WAYS)
def test_calls_become_fewer(way, monkeypatch):
    calls: Counter[str] = Counter()
    for name in ("append_token", "append_token_batch_fast_path", "append_token_batch"):
        original = getattr(KVBlockManager, name)

        def counted(*args, name=name, original=original):
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(KVBlockManager, name, counted)
    writes = []
    write = IndexedWrite.write
    monkeypatch.setattr(IndexedWrite, "write", lambda *args: writes.append(len(args[5])) or write(*args))
    stepped(way)
    assert calls == CALLS[way]
    # Requests in each write of a layer: the fast path writes two together, the whole batch goes as one.
    assert writes == {AppendPerToken: [], AppendBatchedFastPath: [2, 2], AppendBatched: [4, 4]}[way]
