"""Prompts into the cache, many at once: padded to the longest, while nobody decodes (rungs up to 12)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from labkit.engine.request import Request, sample_requests
from labkit.engine.scheduler import Admitted, OnlineScheduler
from labkit.engine.session import InferenceSession
from labkit.kvcache import PrefixEntry
from labkit.model import Network, PastKV
from labkit.ranges import named_range


class FirstTokens(NamedTuple):
    """Requests that run from here on, each with its first token; None where its logits are not finite.

    num_computed, num_reused: prompt tokens that were computed, and that the prefix cache had.
    """

    requests: list[Request]
    token_ids: Sequence[int | None]
    num_computed: int
    num_reused: int


@dataclass(eq=False, repr=False)
class PaddedPrefill:
    """Prompts are computed as a batch, padded to the longest, and the running requests wait for it."""

    watch_points = ("sample",)
    sample = staticmethod(sample_requests)  # a prompt's first token, on the host
    in_flight = ()  # all is computed within `launch`

    network: Network
    scheduler: OnlineScheduler
    due: FirstTokens | None = None  # made by `launch`, and to be read

    def launch(self) -> bool:
        """Admit what fits and compute its first tokens; whether the running requests have to wait, which they
        do if any was admitted. If that fails, all wait as before."""
        self.due = None
        if not self.scheduler.waiting or not self.scheduler.may_admit():
            return False
        started = time.perf_counter()
        admitted = self.scheduler.admit()
        if not admitted:
            return False
        requests = [request for request, _, _ in admitted]
        try:
            num_reused = sum(session.num_tokens for _, session, _ in admitted)
            logits = self._prompt_logits(admitted)
            token_ids = self.sample(requests, logits)
            for (request, session, _), row, token_id in zip(admitted, logits, token_ids, strict=True):
                self.scheduler.keep_prompt_of(request, session, row, token_id)
            for request in requests:
                request.admitted = request.admitted or started
            num_computed = sum(request.num_tokens for request in requests) - num_reused
            self.due = FirstTokens(requests, token_ids, num_computed, num_reused)
        except BaseException:
            self.scheduler.put_back(requests)
            raise
        return True

    def read(self) -> FirstTokens:
        """The first tokens that the step's `launch` made, which are due."""
        assert self.due is not None
        return self.due

    def join(self, requests: Sequence[Request]) -> None:
        """Those that were read get their first tokens now."""
        self.due = None

    def lost(self) -> list[Request]:
        """The requests that run without a first token, because of an error before they got it."""
        requests = self.due.requests if self.due else []
        return [request for request in requests if request in self.scheduler.running]

    def _prompt_logits(self, admitted: list[Admitted]) -> Tensor:
        """Logits [B, V] after each prompt: its prefix's if that is the whole prompt, else computed."""
        # A prefix may have been evicted since, to make room for another request; its logits are still right.
        known = {
            request: prefix.last_logits
            for request, _, prefix in admitted
            if isinstance(prefix, PrefixEntry) and prefix.num_tokens == request.num_tokens
        }
        missing = {request: session for request, session, _ in admitted if request not in known}
        if missing:
            prompts = [request.token_ids for request in missing]
            computed = prefill_sessions(self.network, list(missing.values()), prompts)
            known |= zip(missing, computed, strict=True)
        return torch.stack([known[request] for request, _, _ in admitted])


def prefill_sessions(
    network: Network, sessions: Sequence[InferenceSession], prompts: Sequence[Sequence[int]]
) -> Tensor:
    """The logits [B, V] after each prompt; its keys and values are computed and stored in its session.

    prompts: token ids, one sequence per session. A session may hold a cached prefix, of which nothing is
    computed again, but must lack at least the last token. If anything fails, some may hold a part of theirs.
    """
    device = network.device
    new_ids = [torch.tensor(ids[s.num_tokens :]) for s, ids in zip(sessions, prompts, strict=True)]
    lengths = [len(ids) for ids in new_ids]
    input_ids = pad_sequence(new_ids, batch_first=True).to(device)  # [B, T]
    with named_range("labkit.prefill_sessions"):
        past = past_of(sessions, device)
        prefilled = network.prefill(input_ids, torch.tensor(lengths, device=device), past)
        for b, session in enumerate(sessions):
            session.append_prompt(
                prefilled.keys[:, b, :, : lengths[b]], prefilled.values[:, b, :, : lengths[b]]
            )
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
