"""Lesson 12: rows of logits on which a wrong sampler shows, and what the rung below makes of them."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.engine.sampling import sample_greedy
from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.distribution import uniform_numbers

NUMBERS_EACH = 12  # random numbers that each kind of row is drawn with
NOBODYS = (1.0, 1, 0.5, 0.5, 1, 3)  # what a slot without a row would draw with


class Row(NamedTuple):
    """A request's logits, and how its token is picked. temperature 0: it does not draw."""

    logits: tuple[float, ...]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def is_filtered(self) -> bool:
        """Whether it asks for top-k or top-p, if it draws at all."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    def __str__(self) -> str:
        filters = f"temperature {self.temperature:g}, top-k {self.top_k}, top-p {self.top_p:g}"
        shown = ", ".join(f"{logit:.3g}" for logit in self.logits[:8])
        return f"{filters}, logits {shown}{', …' if len(self.logits) > 8 else ''}"


class Case(NamedTuple):
    """Rows of one batch, all of one vocabulary, each drawn with several random numbers; the contract that
    they are about, and a hint."""

    contract: str
    rows: tuple[Row, ...]
    hint: str


@dataclass(frozen=True)
class Batch:
    """Arguments of a sampler, as the engine hands them over. Slots are more than rows, in another order."""

    rows: tuple[Row, ...]
    logits: Tensor
    token_ids: Tensor
    slot_mapping: Tensor
    last_token_ids: Tensor
    state: SamplingState
    is_filtered: bool

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device | str = "cpu") -> "Batch":
        """Rows of one vocabulary; each has a seed of its own, and has drawn some numbers."""
        logits = torch.tensor([row.logits for row in rows], device=device)
        slots = torch.arange(len(rows), 0, -1, device=device)  # the first and the last have no row
        last_token_ids = torch.zeros(len(rows) + 2, dtype=torch.int64, device=device)
        draw_with = [
            (row.temperature, row.top_k, row.top_p, 0.0, 7919 * i - 99, i % 5) for i, row in enumerate(rows)
        ]
        columns = zip(NOBODYS, *draw_with[::-1], NOBODYS, strict=True)
        state = SamplingState(*(torch.from_numpy(np.array(column)).to(device) for column in columns))
        is_filtered = any(row.is_filtered for row in rows)
        return cls(tuple(rows), logits, sample_greedy(logits), slots, last_token_ids, state, is_filtered)

    @property
    def of_rows(self) -> SamplingState:
        """What each row draws with: tensors [B]."""
        return self.state.at(self.slot_mapping)

    @property
    def numbers(self) -> Tensor:
        """The random number of each row, [B]."""
        return uniform_numbers(self.of_rows.seeds, self.of_rows.draws)

    def drawn(self) -> Tensor:
        """The tokens [B] that the package draws."""
        batch = deepcopy(self)
        batch.give(draw_plain)
        return batch.token_ids

    def give(self, draw: DrawFunction) -> None:
        """Let a sampler draw: tokens, last tokens and draws change in place."""
        draw(
            self.logits, self.token_ids, self.slot_mapping, self.last_token_ids, self.state, self.is_filtered
        )


def logs(*shares: float) -> tuple[float, ...]:
    """Logits of these probabilities at temperature 1."""
    return tuple(math.log(share) for share in shares)


def random_rows(vocab_size: int = 300) -> tuple[Row, ...]:
    """A mixed batch of rows like those of a model."""
    generator = torch.Generator().manual_seed(12)
    ways = (
        (0.0, 5, 0.5),
        (0.8, 0, 1.0),
        (0.8, 0, 0.95),
        (1.3, 40, 1.0),
        (0.7, 50, 0.9),
        (1.1, 400, 1.0),
    )
    logits = (3 * torch.randn(len(ways), vocab_size, generator=generator)).tolist()
    return tuple(Row(tuple(each), *way) for each, way in zip(logits, ways, strict=True))


STEPS = (0.5, -1.0, 2.0, 1.0, 0.0)  # logits that are all different
BELOW_MINUS_1 = -1.0 - 2.0**-23  # the float32 next to -1
NEVER = -200.0  # a logit whose probability is 0
AT_THE_LIMIT = "a sum that is 1 - p itself may go"
ROUNDED_ONCE = (
    "The limit is `(1 - top_ps).float()`. Add the weights in float64, and round the sum once, by `.float()`, "
    "before it is compared."
)
UNEQUAL = logs(0.3, 0.15, 0.5, 0.05)
CASES = (
    Case(
        "a row draws with its own random number",
        (Row(STEPS, temperature=1.0), Row((0.0, 0.0, 0.0, 0.0, 0.0), temperature=0.7)),
        "It draws the first token whose cumulated probability is above the number: count those that are not. "
        "Write the token into token_ids, in place.",
    ),
    Case(
        "a row that does not draw keeps its token",
        (Row((2.0, 0.5, 2.0, 1.0, 2.0)), Row((4.0, 3.9, 3.8, 3.7, 3.6), temperature=1.0)),
        "At temperature 0 token_ids already has the likeliest token: `torch.where` chooses per row.",
    ),
    Case(
        "a row without finite logits has no token, and changes no other row",
        (
            Row(STEPS, temperature=1.0),
            Row((0.5, math.nan, 2.0, 1.0, 0.0), temperature=1.0),
            Row((0.5, math.inf, 2.0, 1.0, 0.0), temperature=1.0),
        ),
        "Its token_ids is -1 when you get it, and must stay -1.",
    ),
    Case(
        "top-k keeps the k of largest score",
        (
            *(Row(STEPS, 1.5, top_k=k) for k in (3, 1, 4)),
            Row((BELOW_MINUS_1, 0.0, -1.0, -3.0, -4.0), 1.0, top_k=2),
            Row((0.0, -1.0, BELOW_MINUS_1, -3.0, -4.0), 1.0, top_k=2),
        ),
        "The cut is the k-th largest: V - k are smaller. Look at the limit, at whether the weight must be "
        "above it, and at what is returned: when nothing is left to halve, the cut is `high`.",
    ),
    Case(
        "a tie with the k-th is kept",
        (Row((0.0, 1.0, 1.0, 1.0, 2.0), 2.0, top_k=2), Row((3.0, 3.0, 3.0, 3.0, 3.0), 1.0, top_k=1)),
        "Drop the scores below the cut, not everything after the first k in some order.",
    ),
    Case(
        "the token that crosses p is kept",
        tuple(Row(UNEQUAL, 1.0, top_p=p) for p in (0.6, 0.9, 0.01)),
        "Drop tokens, the least likely first, as long as all dropped ones together have no more than 1 - p.",
    ),
    Case(
        "at the top-p cut the less likely token goes first, and of equal ones the lower id",
        (
            Row((1.0,) * 8, 1.0, top_p=0.5),
            Row((0.0, 2.0, 2.0, 2.0, 0.0, 2.0, 2.0, 0.0), 1.0, top_p=0.6),
            Row((-1.0, BELOW_MINUS_1, 0.0, *[NEVER] * 5), 1.0, top_p=0.7),
            Row((BELOW_MINUS_1, -1.0, 0.0, *[NEVER] * 5), 1.0, top_p=0.7),
        ),
        "No two keys may be equal, and the id may count only among equal scores: multiply the score's key by "
        "V, and then add the id.",
    ),
    Case(
        AT_THE_LIMIT,
        (Row((0.0,) * 6, 1.0, top_p=0.5), Row((*[0.0] * 5, NEVER), 1.0, top_p=0.8)),
        ROUNDED_ONCE,
    ),
    Case(
        "rows of any kind draw the tokens of the rung below",
        random_rows(),
        "The batch has every kind of row, of 300 tokens. Top-k is off at 0 and at more than there are, and "
        "top-p at 1.",
    ),
)
MANY_TIES = Case(  # a sort need not keep their order
    AT_THE_LIMIT, (Row((0.0,) * 60, 1.0, top_p=0.9),), f"Six of the 60 equal tokens go. {ROUNDED_ONCE}"
)
