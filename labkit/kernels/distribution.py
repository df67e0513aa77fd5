"""From logits to probabilities to a token, as Hugging Face defines temperature, top-k, top-p and min-p.

Tensors to tensors: which operators run does not depend on the numbers, so a CUDA graph can hold them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.kernels.triton_runtime import tl, triton

FLOAT32 = torch.finfo(torch.float32)
SPLITMIX64 = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
)  # the step, and what mixing multiplies by


class SamplingState(NamedTuple):
    """What requests are sampled with: a number each for one request, tensors [B] for rows, [S] for slots."""

    temperatures: Any  # float64; 0 takes the likeliest token
    top_ks: Any  # int64
    top_ps: Any  # float64
    min_ps: Any  # float64
    seeds: Any  # int64: a seed's lowest 64 bits
    draws: Any  # int64: random numbers drawn so far

    def at(self, rows: Any) -> "SamplingState":
        """The state of these rows or slots."""
        return SamplingState(*(column[rows] for column in self))


OFF = SamplingState(0.0, 0, 1.0, 0.0, 0, 0)  # of a request that asks for nothing
FILTERS = ("top_ks", "top_ps", "min_ps")  # the columns that rule tokens out
PACKED = np.dtype([(name, type(off)) for name, off in OFF._asdict().items()])  # eight bytes each
DTYPES = SamplingState(*(torch.float64 if isinstance(off, float) else torch.int64 for off in OFF))


def pack_states(states: Sequence[SamplingState]) -> np.ndarray:
    """The states of requests as one array, int64 [columns, requests], fractions by their bits."""
    return np.array(states, dtype=PACKED).view(np.int64).reshape(len(states), len(OFF)).T


def unpack_states(packed: Tensor) -> SamplingState:
    """The state in a tensor int64 [columns, S], as `pack_states` packs it, without a copy."""
    return SamplingState(*(column.view(dtype) for column, dtype in zip(packed, DTYPES, strict=True)))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token [B] int64 of each row [B, V], and whether [B] bool the row's maximum is finite."""
    best_logits, best_ids = logits.max(dim=-1)  # NaN and inf, if any, are the row's maximum
    return best_ids, best_logits.isfinite()


def warp(logits: Tensor, state: SamplingState) -> Tensor:
    """The probabilities [B, V] float32 that tokens are drawn from: temperature, top-k, top-p, min-p.

    logits: [B, V]. state: of the rows; None instead of a filter leaves it out for all rows.
    A temperature of 0, at which no token is drawn, counts as the smallest.
    As in transformers, top-k keeps ties with the k-th token, and top-p keeps the token that crosses p.
    A row of logits with NaN or with an infinite maximum gives NaN, and changes no other row.
    """
    V = logits.shape[-1]
    scores = scaled(logits, state.temperatures)
    if (top_ks := state.top_ks) is not None:
        ranks = top_ks.masked_fill(top_ks == 0, V).clamp(max=V) - 1
        kth = scores.sort(dim=-1, descending=True).values.gather(1, ranks[:, None])
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if (top_ps := state.top_ps) is not None:
        ascending, order = scores.sort(dim=-1)
        tail = ascending.softmax(dim=-1).cumsum(dim=-1)
        dropped = tail <= (1 - top_ps).float()[:, None]
        dropped &= (top_ps < 1)[:, None]
        dropped[:, -1] = False
        scores = scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
    if state.min_ps is not None:
        scores = scores.masked_fill(~kept_by_min_p(scores, state.min_ps), -torch.inf)
    return scores.softmax(dim=-1)


def scaled(logits: Tensor, temperatures: Tensor) -> Tensor:
    """The scores [B, V] float32 of logits [B, V]; the row's largest is 0. temperatures: [B], 0 as tiny."""
    # A shift changes no probability, and of a tiny temperature's quotients none is then +inf.
    logits = logits.float()
    scores = logits - logits.amax(dim=-1, keepdim=True)
    # Dividing by less than the smallest may be dividing by 0, and by more than the largest by inf.
    return scores / temperatures.clamp(FLOAT32.tiny, FLOAT32.max).float()[:, None]


def kept_by_min_p(scores: Tensor, min_ps: Tensor) -> Tensor:
    """Which tokens [B, V] have at least the row's share `min_ps` [B] of the largest probability.

    A token has exp(score) of it, because the largest score is 0. So there is nothing to search for or to add.
    """
    return scores >= min_ps.log().float()[:, None]


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


@triton.jit
def uniform_number_of(seed, index):
    """In a kernel: the random number of a seed's 64 bits and an index, as `uniform_numbers` gives it."""
    step = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    state = _mixed(seed.to(tl.uint64, bitcast=True)) + (index + 1).to(tl.uint64) * step
    return (_mixed(state) >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def _mixed(z):
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)
