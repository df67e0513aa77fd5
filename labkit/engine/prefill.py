"""Prompts into the cache, many at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from labkit.engine.session import InferenceSession
from labkit.model import Network, PastKV
from labkit.ranges import named_range


def prefill_sessions(
    network: Network, sessions: Sequence[InferenceSession], prompts: Sequence[Sequence[int]]
) -> Tensor:
    """The logits [B, V] after each prompt; its keys and values are computed and stored in its session.

    prompts: token ids, one sequence per session. A session may hold a cached prefix, of which nothing is
    computed again, but must lack at least the last token. If anything fails, all sessions are as before and
    the error is raised.
    """
    device = network.device
    new_ids = [torch.tensor(ids[s.num_tokens :]) for s, ids in zip(sessions, prompts, strict=True)]
    lengths = [len(ids) for ids in new_ids]
    input_ids = pad_sequence(new_ids, batch_first=True).to(device)  # [B, T]
    with named_range("labkit.prefill_sessions"):
        past = past_of(sessions, device)
        prefilled = network.prefill(input_ids, torch.tensor(lengths, device=device), past)
        held = [session.num_tokens for session in sessions]
        try:
            for b, session in enumerate(sessions):
                session.append_prompt(
                    prefilled.keys[:, b, :, : lengths[b]], prefilled.values[:, b, :, : lengths[b]]
                )
        except BaseException:
            for session, num_tokens in zip(sessions, held, strict=True):
                session.num_tokens = num_tokens
                session.roll_back()
            raise
    return prefilled.last_logits


def past_of(sessions: Sequence[InferenceSession], device: torch.device) -> PastKV | None:
    """The keys and values that the sessions hold, padded to the longest; None if all sessions are empty."""
    lengths = [session.num_tokens for session in sessions]
    if not any(lengths):
        return None
    dense = [session.dense_kv() for session in sessions]  # each [L, H, P_b, D]
    keys, values = (
        pad_sequence([kv[which].permute(2, 0, 1, 3) for kv in dense], batch_first=True) for which in (0, 1)
    )  # each [B, P, L, H, D]
    return PastKV(
        keys.permute(2, 0, 3, 1, 4), values.permute(2, 0, 3, 1, 4), torch.tensor(lengths, device=device)
    )
