"""From logits to a token: greedy, temperature, top-k and top-p, as Hugging Face defines them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.checks import is_number, is_whole, shown
from labkit.errors import RequestError

FLOAT32 = torch.finfo(torch.float32)
INT64 = torch.iinfo(torch.int64)
SPLITMIX64 = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
)  # the step, and what mixing multiplies by


@dataclass(frozen=True)
class SamplingParams:
    """How one request is continued.

    max_new_tokens: tokens to generate at most.
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: keep the likeliest tokens whose probabilities first reach p, the one that crosses it included.
    seed: the request's own stream of random numbers, the same whatever else is in the batch.
    stop_on_eos: end at the model's end-of-text token: True or False, of Python's own type.
    Raises RequestError for a value of another type or out of range.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_on_eos: bool = True

    def __post_init__(self) -> None:
        if not is_whole(self.max_new_tokens) or self.max_new_tokens < 1:
            raise RequestError(
                f"max_new_tokens must be a whole number of 1 or more, not {shown(self.max_new_tokens)}"
            )
        if not is_number(self.temperature) or self.temperature < 0:
            raise RequestError(
                f"temperature must be a finite number of 0 or more, not {shown(self.temperature)}"
            )
        if not is_whole(self.top_k) or self.top_k < 0:
            raise RequestError(f"top_k must be a whole number of 0 (off) or more, not {shown(self.top_k)}")
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1 (off), not {shown(self.top_p)}")
        if self.seed is not None and not is_whole(self.seed):
            raise RequestError(f"seed must be a whole number or None, not {shown(self.seed)}")
        if not isinstance(self.stop_on_eos, bool):
            raise RequestError(f"stop_on_eos must be True or False, not {shown(self.stop_on_eos)}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def uniform_number(seed: int, index: int) -> float:
    """The index-th number in [0, 1) of a seed's stream: SplitMix64 (Steele et al., 2014).

    A function of its arguments alone, so a request draws the same numbers in any batch, after any
    preemption and when a failed step is tried again.
    """
    mask = 2**64 - 1
    step, first, second = SPLITMIX64

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * first & mask
        z = (z ^ (z >> 27)) * second & mask
        return z ^ (z >> 31)

    state = mix(seed & mask) + (index + 1) * step
    return (mix(state & mask) >> 11) * 2.0**-53


# --- on the host: the parameters are Python's, and the tokens are read back ----------------------------


def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int | None]:
    """One token for each row of logits [B, V]; None for a row whose logits are not finite numbers.

    uniforms: for each row, the number in [0, 1) that decides its draw; greedy rows do not use it.
    `device_sampling.sample_any` gives the same tokens without reading anything back.
    """
    best_ids, finite = likeliest(logits)
    is_finite = finite.tolist()
    token_ids = best_ids.tolist()
    drawn = [b for b, p in enumerate(params) if is_finite[b] and not p.is_greedy]
    if drawn:
        probabilities = warped_probabilities(logits[drawn], [params[b] for b in drawn])
        for b, token_id in zip(drawn, draw(probabilities, [uniforms[b] for b in drawn]), strict=True):
            token_ids[b] = token_id
    return [token_id if ok else None for token_id, ok in zip(token_ids, is_finite, strict=True)]


def warped_probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """What each row [B, V] is drawn from."""
    return warp(logits, *warp_tensors(params, logits.device))


def warp_tensors(
    params: Sequence[SamplingParams], device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Temperature, top_k and top_p of each row as `warp` takes them; None for what is off in every row."""
    temperature = torch.tensor([float(p.temperature) for p in params], dtype=torch.float64, device=device)
    top_k = top_p = None
    if any(p.top_k for p in params):
        top_k = torch.tensor([min(p.top_k, INT64.max) for p in params], device=device)
    if any(p.top_p < 1 for p in params):
        top_p = torch.tensor([float(p.top_p) for p in params], dtype=torch.float64, device=device)
    return temperature, top_k, top_p


def draw(probabilities: Tensor, uniforms: Sequence[float]) -> list[int]:
    """The token of each row [B, V] at which the cumulated probability passes the row's number in [0, 1)."""
    u = torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device)
    return pick(probabilities, u).tolist()


# --- tensors to tensors: what runs is the same whatever the numbers are, so a CUDA graph can hold it ----


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token [B] int64 of each row [B, V], and whether [B] bool the row's maximum is finite."""
    best_logits, best_ids = logits.max(dim=-1)  # NaN and inf, if any, are the row's maximum
    return best_ids, best_logits.isfinite()


def warp(logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """What each row [B, V] is drawn from, float32: temperature, then top-k, then top-p.

    temperature: [B] float64, as Python holds it; 0, which nothing is drawn at, counts as the smallest.
    top_k: [B] int64, 0 for a row without; None leaves the stage out for all rows.
    top_p: [B] float64, for 1 - top_p to be rounded once; 1 for a row without; None as for top_k.
    As in transformers, top-k keeps ties with the k-th token, and top-p keeps the token that crosses p.
    A row of logits with NaN or with an infinite maximum gives NaN, and changes no other row.
    """
    V = logits.shape[-1]
    # A shift changes no probability, and of a tiny temperature's quotients none is then +inf.
    scores = logits.float() - logits.amax(dim=-1, keepdim=True)
    # Dividing by less than the smallest may be dividing by 0, and by more than the largest by inf.
    scores /= temperature.double().clamp(FLOAT32.tiny, FLOAT32.max).float()[:, None]
    if top_k is not None:
        ranks = top_k.masked_fill(top_k == 0, V).clamp(max=V) - 1
        kth = scores.sort(dim=-1, descending=True).values.gather(1, ranks[:, None])
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if top_p is not None:
        ascending, order = scores.sort(dim=-1)
        tail = ascending.softmax(dim=-1).cumsum(dim=-1)
        dropped = tail <= (1 - top_p.double()).float()[:, None]
        dropped &= (top_p < 1)[:, None]
        dropped[:, -1] = False
        scores = scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
    return scores.softmax(dim=-1)


def pick(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The token [B] of each row [B, V] whose cumulated probability passes the row's number in [0, 1).

    uniforms: [B] float64. A row of NaN gives V, which is no token.
    """
    cumulated = probabilities.double().cumsum(dim=-1)
    # right=True: the first token whose cumulated probability is above u, so never one of probability 0
    return torch.searchsorted(cumulated, (uniforms * cumulated[:, -1])[:, None], right=True)[:, 0]
