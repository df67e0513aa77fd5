"""Lesson 12: rows of logits on which a wrong sampler shows, and what the rung below makes of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.engine.sampling import sample_greedy
from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.distribution import uniform_numbers

NUMBERS_EACH = 12  # random numbers that each kind of row is drawn with
GPT2_TOKENS = 50_257
NOBODYS = 77  # last token of a slot that has no row


@dataclass(frozen=True)
class Row:
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


@dataclass(frozen=True)
class Case:
    """Rows of one batch, all of one vocabulary, each drawn with several random numbers; the contract that
    they are about, and a hint."""

    contract: str
    rows: tuple[Row, ...]
    hint: str

    @property
    def is_filtered(self) -> bool:
        """Whether the engine would call it a batch with filters."""
        return any(row.is_filtered for row in self.rows)

    def batch(self, device: torch.device | str = "cpu") -> "Batch":
        """The rows in a batch, `NUMBERS_EACH` times over."""
        return Batch.of(self.rows * NUMBERS_EACH, self.is_filtered, device)


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
    def of(cls, rows: Sequence[Row], is_filtered: bool, device: torch.device | str) -> "Batch":
        """Rows of one vocabulary; each has a seed of its own, and has drawn some numbers."""
        num_slots = len(rows) + 2
        slots = torch.arange(len(rows), device=device).flip(0) + 1  # the first and the last have no row

        def of_slots(numbers: Sequence[float], dtype: torch.dtype, free: float) -> Tensor:
            column = torch.full((num_slots,), free, dtype=dtype, device=device)
            column[slots] = torch.tensor(numbers, dtype=dtype, device=device)
            return column

        logits = torch.tensor([row.logits for row in rows], device=device)
        token_ids = sample_greedy(logits)
        last_token_ids = torch.full((num_slots,), NOBODYS, device=device)
        last_token_ids[slots] = token_ids.clamp(min=0)
        count = range(len(rows))
        state = SamplingState(
            of_slots([row.temperature for row in rows], torch.float64, 1.0),
            of_slots([row.top_k for row in rows], torch.int64, 1),
            of_slots([row.top_p for row in rows], torch.float64, 0.5),
            of_slots([0.0 for _ in rows], torch.float64, 0.5),
            of_slots([7919 * i - 99 for i in count], torch.int64, 1),
            of_slots([i % 5 for i in count], torch.int64, 3),
        )
        return cls(tuple(rows), logits, token_ids, slots, last_token_ids, state, is_filtered)

    @property
    def of_rows(self) -> SamplingState:
        """What each row draws with: tensors [B]."""
        return self.state.at(self.slot_mapping)

    @property
    def numbers(self) -> Tensor:
        """The random number of each row, [B]."""
        return uniform_numbers(self.of_rows.seeds, self.of_rows.draws)

    def drawn(self) -> Tensor:
        """The tokens [B] that the package draws: those of the rung below, whose sort on a CPU does not keep
        the order of many equal scores."""
        token_ids, last = self.token_ids.clone(), self.last_token_ids.clone()
        state = SamplingState(*(column.clone() for column in self.state))
        draw_plain(self.logits, token_ids, self.slot_mapping, last, state, self.is_filtered)
        return token_ids

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
        (0.0, 0, 1.0),
        (0.8, 0, 1.0),
        (0.8, 0, 0.95),
        (1.3, 40, 1.0),
        (0.7, 50, 0.9),
        (0.0, 5, 0.5),
        (1e-3, 3, 0.3),
        (30.0, 0, 0.999),
        (1.1, 400, 1.0),
    )
    logits = (3 * torch.randn(len(ways), vocab_size, generator=generator)).tolist()
    return tuple(Row(tuple(each), *way) for each, way in zip(logits, ways, strict=True))


STEPS = (0.5, -1.0, 2.0, 1.0, 0.0)  # logits that are all different
BELOW_MINUS_1 = -1.0 - 2.0**-23  # the float32 next to -1
# Sums of equal numbers in float64: in whatever order a machine adds, they are the same.
AT_THE_LIMIT = "a sum that is 1 - p itself may go"
ROUNDED_ONCE = (
    "The limit is `(1 - top_ps).float()`, and the weight is rounded by `.float()` before it is compared: "
    "with other roundings they are not equal."
)
UNFILTERED = (
    Case(
        "a row draws with its own random number",
        (Row(STEPS, temperature=1.0), Row((0.0, 0.0, 0.0, 0.0, 0.0), temperature=0.7)),
        "It draws the first token whose cumulated probability is above the number: count those that are not. "
        "Write the token into token_ids, in place. A row's parameters are those of its slot: "
        "`column[slot_mapping]`.",
    ),
    Case(
        "a row that does not draw keeps its token",
        (Row((2.0, 0.5, 2.0, 1.0, 2.0)), Row((4.0, 3.9, 3.8, 3.7, 3.6), temperature=1.0)),
        "At temperature 0 token_ids already has the likeliest token, and keeps it: `torch.where` chooses per "
        "row. A row's parameters are those of its slot: `column[slot_mapping]`.",
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
)
FILTERED = (
    Case(
        "top-k keeps the k of largest score",
        (Row(STEPS, 1.5, top_k=3), Row(STEPS, 1.5, top_k=1), Row(STEPS, 1.5, top_k=4)),
        "The cut is the k-th largest: V - k are smaller. Look at the limit, at whether the weight must be "
        "above it, at the order of the keys (all scores except the largest are negative), and at the number "
        "of halvings.",
    ),
    Case(
        "a score just below the cut is dropped",
        (Row((BELOW_MINUS_1, 0.0, -1.0), 1.0, top_k=2), Row((0.0, -1.0, BELOW_MINUS_1), 1.0, top_k=2)),
        "Two of its scores, near -1, are neighbours: there is no float32 between them. When nothing is left "
        "to halve, the cut is `high`; `below` is one key too low.",
    ),
    Case(
        "a tie with the k-th is kept",
        (Row((0.0, 1.0, 1.0, 1.0, 2.0), 2.0, top_k=2), Row((3.0, 3.0, 3.0, 3.0, 3.0), 1.0, top_k=1)),
        "Drop the scores below the cut, not everything after the first k in some order.",
    ),
    Case(
        "the token that crosses p is kept",
        (
            Row(logs(0.3, 0.15, 0.5, 0.05), 1.0, top_p=0.6),
            Row(logs(0.3, 0.15, 0.5, 0.05), 1.0, top_p=0.9),
            Row(logs(0.3, 0.15, 0.5, 0.05), 1.0, top_p=0.01),
        ),
        "Drop tokens, the least likely first, as long as all dropped ones together have no more than 1 - p.",
    ),
    Case(
        "top-p counts at the row's temperature",
        (Row(STEPS, 3.0, top_p=0.7), Row(STEPS, 0.4, top_p=0.7)),
        "The temperature comes first: `scores` are the logits divided by it, and the softmax is of them.",
    ),
    Case(
        "of equal tokens at the cut those of lower id go first",
        (Row((1.0,) * 8, 1.0, top_p=0.5), Row((0.0, 2.0, 2.0, 2.0, 0.0, 2.0, 2.0, 0.0), 1.0, top_p=0.6)),
        "No two keys may be equal: put score and id into one whole number, the score first. A range of such "
        "keys needs 49 halvings.",
    ),
    Case(
        "of two unequal tokens the less likely goes first, whatever their ids",
        (Row((-1.0, BELOW_MINUS_1, 0.0), 1.0, top_p=0.7), Row((BELOW_MINUS_1, -1.0, 0.0), 1.0, top_p=0.7)),
        "Two of its scores, near -1, are neighbours: there is no float32 between them. The id may count only "
        "among equal scores: multiply the score's key by V, and then add the id.",
    ),
    Case(AT_THE_LIMIT, (Row((0.0,) * 5, 1.0, top_p=0.8),) * 2, ROUNDED_ONCE),
    Case(AT_THE_LIMIT, (Row((0.0,) * 6, 1.0, top_p=0.5),) * 2, ROUNDED_ONCE),
    Case(
        "top-p is of what top-k has left",
        (Row(logs(0.3, 0.25, 0.25, 0.1, 0.06, 0.04), 1.0, top_k=3, top_p=0.6),) * 2,
        "Top-k comes first: what it drops gets the score -inf, so its probability is 0 when top-p counts.",
    ),
    Case(
        "rows of any kind draw the tokens of the rung below",
        random_rows(),
        "The batch has every kind of row, of 300 tokens. Top-k is off at 0 and at more than there are, and "
        "top-p at 1.",
    ),
)
SUM_OF_SIX = Case(
    AT_THE_LIMIT,
    (Row((0.0,) * 60, 1.0, top_p=0.9),) * 2,
    "Six of the 60 equal tokens go. Add the weights in float64, and round the sum once.",
)
WHOLE_VOCABULARY = Case(
    "a search goes on until one key is left",
    (Row((-20.0, *[0.0] * (GPT2_TOKENS - 1)), 1.0, top_p=0.6),),
    f"The row has GPT-2's {GPT2_TOKENS:,} tokens, and all except the first are alike. A range of keys with "
    "score and id needs 49 halvings.",
)
