"""Sampling by the host: the parameters are Python's, and the tokens are read back."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.engine.sampling.params import SamplingParams
from labkit.kernels.distribution import DTYPES, FILTERS, OFF, SPLITMIX64, SamplingState, likeliest, pick, warp


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


def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int | None]:
    """One token for each row of logits [B, V]; None for a row whose logits are not finite numbers.

    uniforms: for each row, the number in [0, 1) that decides its draw; greedy rows do not use it.
    `sample_any` gives the same tokens without reading anything back.
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
    """The probabilities [B, V] float32 that each row's token is drawn from, after its params."""
    return warp(logits, rows_state(params, logits.device))


def rows_state(params: Sequence[SamplingParams], device: torch.device) -> SamplingState:
    """What `warp` asks of rows of these params; None for a filter that is off in all of them."""
    columns = SamplingState(*zip(*(p.state(0, 0) for p in params), strict=True))._asdict()
    made = {"temperatures", *(name for name in FILTERS if set(columns[name]) != {getattr(OFF, name)})}
    return SamplingState(
        *(
            torch.tensor(columns[name], dtype=dtype, device=device) if name in made else None
            for name, dtype in DTYPES._asdict().items()
        )
    )


def draw(probabilities: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Draw one token id per row of probabilities [B, V], by the row's random number in [0, 1)."""
    u = torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device)
    return pick(probabilities, u).tolist()
