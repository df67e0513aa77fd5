"""From logits to probabilities to a token, as Hugging Face defines temperature, top-k and top-p.

Tensors to tensors: which operators run does not depend on the numbers, so a CUDA graph can hold them.
"""

import torch
from torch import Tensor

FLOAT32 = torch.finfo(torch.float32)
SPLITMIX64 = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
)  # the step, and what mixing multiplies by


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token [B] int64 of each row [B, V], and whether [B] bool the row's maximum is finite."""
    best_logits, best_ids = logits.max(dim=-1)  # NaN and inf, if any, are the row's maximum
    return best_ids, best_logits.isfinite()


def warp(logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """The probabilities [B, V] float32 that tokens are drawn from: temperature, then top-k, then top-p.

    logits: [B, V].

    temperature: [B] float64, as Python holds it; 0, at which no token is drawn, counts as the smallest.
    top_k: [B] int64, 0 for a row without; None leaves the stage out for all rows.
    top_p: [B] float64, for 1 - top_p to be rounded once; 1 for a row without; None leaves the stage out for
        all rows.
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
    """Draw a token per row: the first whose cumulated probability passes the row's random number.

    probabilities: [B, V]. uniforms: [B] float64 in [0, 1). Returns ids [B]; a row of NaN gives V, which is no
    token.
    """
    cumulated = probabilities.double().cumsum(dim=-1)
    # right=True: the first token whose cumulated probability is above u, so never one of probability 0
    return torch.searchsorted(cumulated, (uniforms * cumulated[:, -1])[:, None], right=True)[:, 0]


# --- the random numbers ----------------------------------------------------------------------------


def uniform_numbers(seeds: Tensor, indices: Tensor) -> Tensor:
    """One random number per row, [B] float64 in [0, 1): `uniform_number` of its seed and index.

    seeds, indices: [B] int64; a seed's 64 bits are its `as_int64`. Integers wrap at 64 bits, as SplitMix64
    (Steele et al., 2014) wants them to; only the shifts mind that int64 has a sign.
    """
    step, first, second = map(as_int64, SPLITMIX64)

    def mix(z: Tensor) -> Tensor:
        z = (z ^ shifted_right(z, 30)) * first
        z = (z ^ shifted_right(z, 27)) * second
        return z ^ shifted_right(z, 31)

    states = mix(seeds) + (indices + 1) * step
    return shifted_right(mix(states), 11).double() * 2.0**-53  # 53 bits: a float64 holds them all


def as_int64(seed: int) -> int:
    """The lowest 64 bits of any whole number, read as a signed one: what an int64 tensor takes."""
    return (seed + 2**63) % 2**64 - 2**63


def shifted_right(z: Tensor, bits: int) -> Tensor:
    """A logical right shift of int64: zeros come in from the left, while `>>` repeats the sign."""
    return z >> bits & 2 ** (64 - bits) - 1
