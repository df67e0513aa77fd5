"""Three ways to append a decode step's keys and values: fewer and fewer calls."""

from collections import Counter

import helpers
import pytest
import torch

from labkit.engine import InferenceSession
from labkit.kvcache import (
    AppendBatched,
    AppendBatchedFastPath,
    AppendPerToken,
    IndexedWrite,
    KVBlockManager,
)

# Tokens of four sessions, in blocks of 4: the last blocks have room in the second and fourth.
HELD = [0, 3, 4, 6]
WAYS = [AppendPerToken, AppendBatchedFastPath, AppendBatched]


def step(way: type) -> None:
    """One step of four sessions in two layers."""
    manager = helpers.make_manager()
    sessions = [InferenceSession(manager) for _ in HELD]
    for session, count in zip(sessions, HELD, strict=True):
        session.append_prompt(*torch.zeros(2, 2, 2, count, 3))
    new = [torch.zeros(len(HELD), 2, 3)] * 2
    way(manager).append(sessions, new, new)


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
    step(way)
    assert calls == CALLS[way]
    # Requests in each write of a layer: the fast path writes two together, the whole batch goes as one.
    assert writes == {AppendPerToken: [], AppendBatchedFastPath: [2, 2], AppendBatched: [4, 4]}[way]
