"""Rows of logits, with what their slots draw with, for the tests of draws without a sort."""

import math
from typing import NamedTuple

import torch
from sampling_helpers import random_logits
from torch import Tensor

from labkit.engine.sampling import sample_any, sample_greedy
from labkit.kernels import SamplingState

KINDS = {  # temperature, top_k, top_p and min_p
    "greedy": (0.0, 40, 0.9, 0.1),
    "temperature": (0.8, 0, 1.0, 0.0),
    "top-k": (0.8, 40, 1.0, 0.0),
    "top-p": (0.8, 0, 0.95, 0.0),
    "min-p": (0.8, 0, 1.0, 0.03),
    "all": (1.5, 40, 0.9, 0.02),
}


class Rows(NamedTuple):
    """What a draw takes: logits [B, V], and slots, of which row b has the slot 2 * b."""

    logits: Tensor
    state: SamplingState

    @property
    def slot_mapping(self) -> Tensor:
        return torch.arange(0, 2 * len(self.logits), 2, device=self.logits.device)

    def expected(self) -> list[int]:
        """The sorted sampler's tokens."""
        return sample_any(self.logits, self.state.at(slice(None, None, 2))).tolist()

    def drawn(self, draw, is_filtered: bool = True) -> list[int]:
        """The tokens of a draw, which changes nothing but what it may: slots of no row stay as they were."""
        token_ids = sample_greedy(self.logits)
        last_token_ids = torch.full((2 * len(self.logits),), -7, device=self.logits.device)
        last_token_ids[::2] = token_ids.clamp(min=0)
        given = self.logits.clone()
        state = SamplingState(*(column.clone() for column in self.state))
        draw(self.logits, token_ids, self.slot_mapping, last_token_ids, state, is_filtered)
        assert torch.equal(self.logits.nan_to_num(1e30), given.nan_to_num(1e30))
        assert torch.equal(last_token_ids[::2], token_ids.clamp(min=0))
        assert last_token_ids[1::2].eq(-7).all()
        assert torch.equal(state.draws[::2], self.state.draws[::2] + 1)
        assert torch.equal(state.draws[1::2], self.state.draws[1::2])
        assert all(map(torch.equal, state[:-1], self.state[:-1]))
        return token_ids.tolist()

    def row(self, b: int) -> "Rows":
        return Rows(self.logits[b : b + 1], self.state.at(slice(2 * b, 2 * b + 2)))


def rows_of(
    logits: Tensor, params: list[tuple[float, ...]], seeds: list[int], indices: list[int] | None = None
) -> Rows:
    """params: temperature, top_k, top_p and min_p (or none) of each row. The slots of no row draw, too."""

    def of_slots(numbers, other, dtype) -> Tensor:
        pairs = [each for number in numbers for each in (number, other)]
        return torch.tensor(pairs, dtype=dtype, device=logits.device)

    temperatures, top_ks, top_ps, min_ps = zip(*((*each, 0.0)[:4] for each in params), strict=True)
    return Rows(
        logits,
        SamplingState(
            of_slots(temperatures, 1.0, torch.float64),
            of_slots(top_ks, 2, torch.int64),
            of_slots(top_ps, 0.5, torch.float64),
            of_slots(min_ps, 0.5, torch.float64),
            of_slots(seeds, 5, torch.int64),
            of_slots(indices or range(len(seeds)), 3, torch.int64),
        ),
    )


def mixed_rows(
    B: int, V: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 3.0
) -> Rows:
    """Rows of every kind in turn, in a padded vocabulary as a fused step's."""
    kinds = list(KINDS.values())
    padded = torch.zeros(B, V + -V % 64, device=device, dtype=dtype)
    padded[:, :V] = random_logits(B, V, scale=scale, seed=seed).to(device, dtype)
    params = [kinds[(b + seed) % len(kinds)] for b in range(B)]
    return rows_of(padded[:, :V], params, [1000 * seed + b for b in range(B)])


INF, NAN = math.inf, math.nan
EDGES = {  # a row of logits, and temperature, top_k, top_p and min_p, if it has one
    "one token": ([2.0], (1.0, 1, 0.5)),
    "k of 1": ([1.0, 3.0, 2.0, 2.9], (5.0, 1, 1.0)),
    "k of 1, and a tie": ([3.0, 1.0, 3.0, 2.0], (5.0, 1, 1.0)),
    "ties with the k-th": ([1.0, 2.0, 2.0, 2.0, 3.0], (2.0, 2, 1.0)),
    "k of all": ([1.0, 3.0, 2.0], (1.0, 3, 1.0)),
    "k of more than there are": ([1.0, 3.0, 2.0], (1.0, 2**31, 1.0)),
    "k among those ruled out": ([-INF, 1.0, -INF, 2.0], (1.0, 3, 1.0)),
    "a tiny p": ([1.0, 3.0, 2.0], (1.0, 0, 1e-300)),
    "a tiny p, and a tie": ([3.0, 3.0, 3.0], (1.0, 0, 1e-300)),
    "a p just below 1": ([1.0, 3.0, 2.0, -40.0], (1.0, 0, 1 - 2**-53)),
    "a min-p of 1, and a tie": ([3.0, 1.0, 3.0, 2.9999998], (5.0, 0, 1.0, 1.0)),
    "a tiny min-p": ([1.0, 3.0, 2.0, -INF], (1.0, 0, 1.0, 1e-300)),
    "a min-p that a token just has": ([1.0, 3.0, 2.0, 0.99], (1.0, 0, 1.0, math.exp(-2))),
    "a min-p above the cut of p": ([1.0, 3.0, 2.5, 2.0], (1.0, 0, 0.9, 0.5)),
    "a min-p below it, and ties there": ([2.0, 3.0, 2.0, 2.0], (1.0, 0, 0.6, 0.1)),
    "a min-p at a tiny temperature": ([1.0, 3.0, 2.0, 3.0], (1e-300, 0, 1.0, 0.1)),
    "a min-p at a huge temperature": ([-1e4, 3.0, 2.0, -INF], (1e300, 0, 1.0, 0.9)),
    "a tiny temperature": ([1.0, 3.0, 2.0, 3.0], (1e-300, 0, 0.9)),
    "the tiniest temperature": ([3.0, 1.0, -INF, 3.0], (5e-324, 0, 1.0)),
    "a huge temperature": ([-1e4, 3.0, 2.0, -INF], (1e30, 0, 1.0)),
    "a temperature above all of float32": ([-1e4, 3.0, 2.0, -INF], (1e300, 0, 1.0)),
    "the largest temperature": ([3.0, 1.0, -INF, 3.0], (1.7e308, 0, 1.0)),
    "all equal": ([0.0] * 10, (1.0, 0, 0.9)),
    "all equal, k and p": ([0.0] * 10, (1.0, 4, 0.7)),
    "zeros of both signs": ([0.0, -0.0, 0.0, -0.0, -1.0], (1.0, 2, 0.6)),
    "all negative": ([-5.0, -6.5, -5.25, -900.0], (1.0, 3, 0.8)),
    "far apart": ([6e4, -6e4, 0.0, 5.9e4], (1.0, 2, 0.5)),
    "ruled out but for one": ([-INF, -INF, -2.0, -INF], (0.7, 2, 0.5)),
}
NO_TOKENS = {"NaN": [1.0, NAN, 2.0], "infinity": [1.0, INF, 2.0], "nothing": [-INF, -INF, -INF]}
