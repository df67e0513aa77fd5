"""Log probabilities of the tokens that were picked, and of the likeliest ones, for requests that ask.

They are those of the model: of its logits as they are, before temperature and filters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine.sampling.params import SamplingParams


class TokenLogprobs(NamedTuple):
    """The log probability of a token, and the likeliest tokens in its place, each with its own.

    top: the likeliest first. The token is among them only if it is one of them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class ScoredToken(int):
    """A token id that has its log probabilities with it, wherever token ids go; else it is that number."""

    logprobs: TokenLogprobs

    @classmethod
    def of(cls, logprobs: TokenLogprobs) -> "ScoredToken":
        """The id of the token that these are of."""
        token_id = cls(logprobs.token_id)
        token_id.logprobs = logprobs
        return token_id


def logprobs_of(token_ids: Iterable[int]) -> tuple[TokenLogprobs, ...]:
    """What the tokens have with them: of a request that asked for log probabilities all have them, else
    none."""
    return tuple(token_id.logprobs for token_id in token_ids if isinstance(token_id, ScoredToken))


def logprobs_asked(params: Iterable[SamplingParams]) -> dict[int, int]:
    """The rows of a batch that ask for log probabilities, and for how many of the likeliest tokens each."""
    return {row: each.logprobs for row, each in enumerate(params) if each.logprobs is not None}


class RowLogprobs:
    """Log probabilities of rows of a batch, on their way from its logits to the host, which does not wait."""

    def __init__(self, logits: Tensor, token_ids: Tensor, asked: Mapping[int, int]) -> None:
        """logits: [B, V]. token_ids: int64 [B], picked from them, or below 0 for none. asked: as
        `logprobs_asked` makes it, of one row at least."""
        self._asked = asked
        rows = list(asked)
        # The other rows cost nothing so. (An index would have to be sent first.)
        of_rows = torch.stack([logits[row] for row in rows])
        picked = torch.stack([token_ids[row] for row in rows]).clamp(min=0)[:, None]
        logprobs = of_rows.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        top = logprobs.topk(min(max(asked.values()), logits.shape[-1]))
        self._logprobs = to_host(torch.cat([logprobs.gather(1, picked), top.values], dim=1))
        self._top_ids = to_host(top.indices)
        self._arrived: torch.cuda.Event | None = None
        if logits.is_cuda:
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def with_tokens(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens that were picked, now read, those of rows that asked with their log probabilities."""
        if self._arrived is not None:
            self._arrived.synchronize()
        scored = list(token_ids)
        columns = zip(self._asked.items(), self._logprobs.tolist(), self._top_ids.tolist(), strict=True)
        for (row, num_top), (logprob, *values), top_ids in columns:
            if scored[row] >= 0:
                top = tuple(zip(top_ids[:num_top], values[:num_top], strict=True))
                scored[row] = ScoredToken.of(TokenLogprobs(scored[row], logprob, top))
        return scored


def to_host(numbers: Tensor) -> Tensor:
    """A copy on the host; from a GPU it is under way, and not waited for."""
    there = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
    return there.copy_(numbers, non_blocking=True)
