"""Lesson 16: what the reader's functions must hold, in random draws against float64 and in a running engine.

T tokens in the cache, H heads, D head size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.parts import NO_PARTS
from labkit.kernels.eight_bit import LEAST_SCALE, ZERO, quantize, scales_of
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven, trained_model
from labkit.learn.steps import noted

Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Bound = Callable[[Tensor, Tensor, Tensor], Tensor]
MOST = 127
NUM_DRAWS = 20
SIZES = (0.01, 0.1, 1e-30, 100, 1e-9)  # of heads
MOVES = (0.001, 0.3, 0.9)  # of a score by half a step of its key: the parts of a bound count in turn
TEXTS = ("To be, or not to be", "O Romeo", "The king is")
NUM_TOKENS = 8
UNSCALED = "The whole numbers were taken as they are: no scale is used yet."
SCALED = (
    "The scales of the keys belong inside of the softmax, and those of the values behind it. The weights no "
    "longer add up to 1 then, and must not: do not divide by their sum again."
)


# --- step 1: whole numbers and scales -------------------------------------------------------------------


def drawn_heads() -> Iterator[tuple[str, Tensor]]:
    """Random heads [T, H, D] and [H, D], and in words what there is to see in them. Few first; some have a
    token that is far larger, some a head of zeros."""
    numbers = torch.Generator().manual_seed(16)
    for draw in range(NUM_DRAWS):
        T, H, D = 1 + draw % 4, 1 + draw % 3, 2 + 3 * draw
        heads = torch.randn(T, H, D, generator=numbers) * SIZES[draw % len(SIZES)]
        words = "random values"
        if draw % 3 == 1:
            heads[-1] *= 1000
            words = "random values, those of the last token 1,000 times as large"
        if draw % 3 == 2:
            heads[0, 0] = 0
            words = "random values, and zeros in the first head"
        for each in (heads, heads[-1]):  # with tokens, and without
            yield f"heads {list(each.shape)} of {words}", each


def check_quantize(quantize: Quantize) -> Report:
    """Whether a function makes whole numbers with a scale per token and head, off by half a scale at most."""

    def trial() -> None:
        for words, heads in drawn_heads():
            check_heads(quantize, heads, words)
        check_bad_values(quantize)

    proof = f"{NUM_DRAWS} random draws, each value off by half a step at most."
    return noted(proven("my_quantize", [trial], proof), "16", "my_quantize", quantize)


def check_heads(quantize: Quantize, heads: Tensor, words: str) -> None:
    """Raise BrokenContract unless heads are numbers and scales near to what they were."""
    numbers, scales = quantize(heads.clone())
    check_shape("scales", scales, heads.shape[:-1])
    if not numbers.isfinite().all():
        raise BrokenContract(
            f"zeros stay zeros: of {words}, some numbers are not finite. The largest value of a head of "
            "zeros is 0, and 0 / 0 is no number: keep scales above 0."
        )
    if (scales < LEAST_SCALE).any():
        raise BrokenContract(
            f"no scale is below 2.0**-126: of {words}, one is {scales.min():g}. So small a number may be "
            "taken for 0."
        )
    read = numbers.double() * scales.double()[..., None]
    largest = heads.double().abs().amax(-1, keepdim=True).expand(heads.shape)
    for place in ((read - heads).abs() > 0.51 * largest / MOST).nonzero().tolist()[:1]:
        raise BrokenContract(
            f"a value is off by half a step of its own head at most: of {words}, value {place} is "
            f"{heads[*place]:.4g} and reads as {read[*place]:.4g}. The largest value of head {place[:-1]} is "
            f"{largest[*place]:.4g}, so its step is a {MOST}th of that."
        )


def check_bad_values(quantize: Quantize) -> None:
    """Raise BrokenContract if a value that is not finite can no longer be seen in what is read."""
    for bad in (torch.nan, torch.inf):
        heads = torch.ones(2, 1, 4)
        heads[0, 0, 1] = bad
        numbers, scales = quantize(heads)
        read = numbers * scales[..., None]
        if read[0].isfinite().any() or not read[1].isfinite().all():
            raise BrokenContract(
                f"a head with a value that is not finite reads as NaN, and no other does: one with {bad} "
                f"reads as {read[0, 0].tolist()}, its neighbour as {read[1, 0].tolist()}. The engine ends a "
                "request whose logits are not finite; hidden, the value would only make its text wrong."
            )


def check_shape(name: str, made: Tensor, shape: torch.Size) -> None:
    """Raise BrokenContract for a tensor of another shape."""
    if made.shape != shape:
        raise BrokenContract(f"{name} has shape {list(made.shape)}, expected {list(shape)}.")


# --- step 2: attention ----------------------------------------------------------------------------------


class Draw(NamedTuple):
    """A query [H, D], whole numbers [H, T, D] as keys and as values, and their scales [H, T]."""

    query: Tensor
    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor

    @property
    def words(self) -> str:
        H, T, D = self.keys.shape
        return f"with {T} tokens in {H} {'head' if H == 1 else 'heads'} of {D} values"


def draws() -> Iterator[Draw]:
    """Of tokens whose scales differ by a factor of ten thousand at most."""
    numbers = torch.Generator().manual_seed(17)
    for draw in range(NUM_DRAWS):
        T, H, D = 2 + 2 * draw, 1 + draw % 3, (4, 8, 16)[draw % 3]
        query = torch.randn(H, D, generator=numbers)
        key_scales, value_scales = 10 ** (-1 - torch.rand(2, H, T, generator=numbers) * 4)
        keys, values = torch.randint(-MOST, MOST + 1, (2, H, T, D), generator=numbers).float()
        yield Draw(query, keys, key_scales / 4, values, value_scales)


def attention_in_float64(*draw: Tensor) -> Tensor:
    """The definition, of a `Draw`: every key and value times its scale, and then softmax attention [H, D]."""
    query, keys, key_scales, values, value_scales = (each.double() for each in draw)
    keys, values = keys * key_scales[..., None], values * value_scales[..., None]
    scores = (keys @ query[..., None])[..., 0] * query.shape[-1] ** -0.5
    return (scores.softmax(-1)[:, None] @ values)[:, 0]


def check_attend(attend: Attend, quantize: Quantize) -> Report:
    """Whether a function is attention over numbers and scales; and whether an engine with both of the
    reader's functions goes on as rung 16."""

    def trial() -> None:
        for draw in draws():
            made, expected = attend(*(each.clone() for each in draw)), attention_in_float64(*draw)
            check_shape("the result", made, expected.shape)
            close = torch.isclose(made.double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
            for place in (~close).nonzero().tolist()[:1]:
                ones = torch.ones_like(draw.key_scales)
                unscaled = attention_in_float64(draw.query, draw.keys, ones, draw.values, ones)
                raise BrokenContract(
                    f"a score is multiplied by its key's scale, a weight by its value's: {draw.words}, value "
                    f"{place} is {made[*place]:.5f}, expected {expected[*place]:.5f}. "
                    f"{UNSCALED if torch.allclose(made.double(), unscaled) else SCALED}"
                )

    proof = f"{NUM_DRAWS} random draws against float64; in an engine of rung 16, its text."
    report = proven("my_attend", [trial], proof)
    if report.ok and not check_quantize(quantize).ok:
        report = Report(False, "my_attend: fill in step 1 first.", before="step 1")
    elif report.ok:
        report = proven("my_attend", [partial(right_text, EightBitAttention(quantize, attend))], proof)
    return noted(report, "16", "my_attend", attend)


@dataclass(frozen=True)
class EightBitAttention:
    """The reader's two functions as one `PagedAttentionAppend`, a request at a time: the new token's key and
    value are quantized and stored, and attended to with those that are there."""

    quantize: Quantize
    attend: Attend

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *cached: Any) -> Tensor:
        k_cache, v_cache, block_table, context_lens, slot_mapping, _ = cached
        out, block_size = torch.zeros_like(query), k_cache.shape[2]
        for b, slot in enumerate(slot_mapping.tolist()):
            length = int(context_lens[slot])
            if length < 0:  # a row that pads the batch
                continue
            blocks = block_table[slot, : length // block_size + 1].long()
            place = blocks[-1], slice(None), length % block_size
            read = []
            for pool, new in ((k_cache, key[b]), (v_cache, value[b])):
                numbers, scales = self.quantize(new.float())
                pool[place] = (numbers.nan_to_num(0) + ZERO).to(torch.uint8)
                scales_of(pool)[place] = scales.bfloat16()
                for kept, zero in ((pool, ZERO), (scales_of(pool), 0)):
                    tokens = kept[blocks].transpose(0, 1).flatten(1, 2)[:, : length + 1]
                    read.append(tokens.float() - zero)
            out[b] = self.attend(query[b].float(), *read).to(query.dtype)
        return out


def right_text(attention: EightBitAttention) -> None:
    """Raise BrokenContract unless an engine of rung 16 with this attention goes on as with the package's."""
    for text, made, expected in zip(TEXTS, texts_with(attention), texts_with(None), strict=True):
        check_text("the text is rung 16's:", text, made, expected)


def check_text(about: str, text: str, made: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise BrokenContract unless the small model's text goes on with the tokens that it should."""
    if made != expected:
        decode = trained_model().tokenizer.decode
        raise BrokenContract(
            f"{about} {text!r} goes on with {decode(made)!r}, expected {decode(expected)!r}."
        )


def texts_with(attention: EightBitAttention | None) -> list[tuple[int, ...]]:
    """How an engine of rung 16 goes on with TEXTS; None: with the package's attention."""
    engine = InferenceEngine(
        trained_model(),
        LADDER["16"].options,
        device="cpu",
        parts=NO_PARTS if attention is None else {"kv_write": attention},
        cache=CacheConfig(block_size=4),
    )
    made = engine.generate(TEXTS, SamplingParams(NUM_TOKENS, stop_on_eos=False))
    engine.check_integrity()
    return [each.token_ids for each in made]


# --- step 3: a bound ------------------------------------------------------------------------------------


def bound(query: Tensor, key_scales: Tensor, value_scales: Tensor) -> Tensor:
    """How far each head's attention can be from that of the keys and values before they were quantized."""
    score = query.abs().sum(-1) * key_scales.amax(-1) / 2 * query.shape[-1] ** -0.5
    return value_scales.amax(-1) * (0.5 + (torch.exp(2 * score) - 1) * 128)


def with_two_that_count(draw: Draw, first: int) -> Draw:
    """A draw in which two tokens have most of the weight and the largest scales, and half a step of all of a
    key's values moves its score by one of MOVES: in the first head by number `first`. The values are the
    largest there are, of one sign in every other token."""
    (H, D), T = draw.query.shape, draw.keys.shape[1]
    counts = (torch.arange(T) - (T - 1) / 2).abs() < 1  # those in the middle
    moves = torch.tensor([MOVES[(first + h) % len(MOVES)] for h in range(H)])[:, None]
    step = 2 * moves * D**0.5 / draw.query.abs().sum(-1, keepdim=True)
    keys = torch.where(counts[:, None], 3 * draw.query.sign()[:, None], draw.keys / 50).round()
    sign = torch.where(torch.arange(T) % 2 == 0, 1.0, -1.0)
    return Draw(
        query=draw.query,
        keys=keys,
        key_scales=step * torch.where(counts, 1.0, 1e-3),
        values=MOST * sign[None, :, None].expand(draw.values.shape),
        value_scales=draw.value_scales.amax(-1, keepdim=True) * torch.where(counts, 1.0, 1e-3),
    )


def before_quantizing(draw: Draw) -> Draw:
    """Keys and values that are rounded to those of a draw, each off by nearly half a step, so that the errors
    add up: the scores of every other token rise, the others' fall, and all values rise."""
    rises = torch.where(torch.arange(draw.keys.shape[1]) % 2 == 0, 0.49, -0.49)
    keys = draw.keys + draw.query.sign()[:, None] * rises[None, :, None]
    return draw._replace(keys=keys, values=draw.values + 0.49)


def check_bound(given: Bound) -> Report:
    """Whether a function bounds the error in every draw, where all errors add up, and says something."""

    def trial() -> None:
        for draw in map(with_two_that_count, draws(), count()):
            least, said = (each(draw.query, draw.key_scales, draw.value_scales) for each in (bound, given))
            check_shape("the bound", said, least.shape)
            off = attention_in_float64(*draw) - attention_in_float64(*before_quantizing(draw))
            for h, error in enumerate(off.abs().amax(-1)):
                if not error <= said[h]:  # or where a bound is no number
                    raise BrokenContract(
                        f"no error is larger than the bound: {draw.words}, rounded so that all errors add "
                        f"up, head {h} is off by {error:.5f}, and the bound says {said[h]:.5f}."
                    )
                if said[h] > 4 * least[h]:
                    raise BrokenContract(
                        f"a bound says how large an error can be, and not much more: {draw.words}, head {h} "
                        f"is bounded by {said[h]:.5f}, and {least[h]:.5f} can be shown."
                    )

    proof = f"{NUM_DRAWS} random draws against float64, in which all errors add up."
    return noted(proven("my_bound", [trial], proof), "16", "my_bound", given)


def texts_of(quantize: Quantize) -> dict[str, str]:
    """How an engine of rung 16 that quantizes so, as it decodes, goes on with TEXTS."""
    decode = trained_model().tokenizer.decode
    made = texts_with(EightBitAttention(quantize, attention_in_float64))
    return dict(zip(TEXTS, map(decode, made), strict=True))


# --- quantizers, most of which are wrong without an error -----------------------------------------------


def rounded(heads: Tensor, largest: Tensor, most: int = MOST) -> tuple[Tensor, Tensor]:
    """Whole numbers up to `most`, and scales for so large values."""
    scales = (largest / most).clamp(min=LEAST_SCALE).expand(heads.shape[:-1])
    return (heads / scales[..., None]).round().clamp(-most, most), scales


def one_scale(heads: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for all tokens and heads of a call: the largest value decides about all others."""
    return rounded(heads, heads.abs().max())


def first_scale(heads: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of the first row for all rows, be they heads or tokens: what is larger is cut off."""
    return rounded(heads, heads[..., :1, :].abs().amax(-1))


def four_bits(heads: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each token and head, of whole numbers up to 7."""
    return rounded(heads, heads.abs().amax(-1), 7)


def by_head(heads: Tensor) -> tuple[Tensor, Tensor]:
    """As the package does it: a scale for each token and head."""
    numbers, scales = quantize(heads, torch.uint8)
    return numbers.float() - ZERO, scales.float()


def as_it_is(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing is rounded."""
    return heads, torch.ones(heads.shape[:-1])
