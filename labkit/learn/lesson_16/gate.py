"""Lesson 16: what the reader's functions must hold, in random draws against float64 and in a running engine.

T tokens in the cache, H heads, D head size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.parts import NO_PARTS
from labkit.kernels.eight_bit import LEAST_SCALE, ZERO, scales_of
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
        for each in (heads, heads.flip(-1) / 3, heads[-1]):  # two calls of one shape, and one without tokens
            yield f"heads {list(each.shape)} of {words}", each


def check_quantize(quantize: Quantize) -> Report:
    """Whether a function makes whole numbers with a scale per token and head, off by half a scale at most,
    also where scales are rounded as the cache keeps them."""

    def trial() -> None:
        for kept in (torch.float32, torch.bfloat16):
            for words, heads in drawn_heads():
                check_heads(quantize, heads, words, kept)
        check_bad_values(quantize)

    proof = f"{NUM_DRAWS} random draws, each value off by half a step at most."
    return noted(proven("my_quantize", [trial], proof), "16", "my_quantize", quantize)


def check_heads(quantize: Quantize, heads: Tensor, words: str, kept: torch.dtype) -> None:
    """Raise BrokenContract unless heads are whole numbers and scales near to what they were, with scales kept
    as `kept`."""
    made = answer_of(quantize, heads)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise BrokenContract(f"numbers and scales are two tensors: it returned {shown(made)}.")
    numbers, scales = made
    check_shape("numbers", numbers, heads.shape)
    check_shape("scales", scales, heads.shape[:-1])
    for number in numbers[~numbers.isfinite()].tolist():
        raise BrokenContract(
            f"zeros stay zeros: of {words}, a number is {number}. The largest value of a head of zeros is 0, "
            "and 0 / 0 is no number: keep scales above 0."
        )
    if (scales < LEAST_SCALE).any():
        raise BrokenContract(
            f"no scale is below 2.0**-126: of {words}, one is {scales.min():g}. So small a number may be "
            "taken for 0."
        )
    for number in numbers[(numbers != numbers.round()) | (numbers.abs() > MOST)].tolist():
        raise BrokenContract(f"numbers are whole, from -{MOST} to {MOST}: of {words}, there is {number:g}.")
    read = numbers.double() * scales.to(kept).double()[..., None]
    largest = heads.double().abs().amax(-1, keepdim=True).expand(heads.shape)
    for place in ((read - heads).abs() > 0.51 * largest / MOST).nonzero().tolist():
        *head, _ = index = tuple(place)
        how = " by its scale in bfloat16" if kept == torch.bfloat16 else ""
        raise BrokenContract(
            f"a value is off by half a step of its own head at most: of {words}, value {place} is "
            f"{heads[index]:.4g} and reads{how} as {read[index]:.4g}. The largest value of head {head} is "
            f"{largest[index]:.4g}, so its step is a {MOST}th of that."
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


def answer_of(function: Callable, *given: Tensor) -> object:
    """What a function makes of tensors. Raises BrokenContract if it changes one of them."""
    copies = [tensor.clone() for tensor in given]
    made = function(*copies)
    if any(not torch.equal(*pair) for pair in zip(copies, given, strict=True)):
        raise BrokenContract("what a function is given stays as it was: it changed a tensor in place.")
    return made


def check_shape(name: str, made: object, shape: torch.Size) -> None:
    """Raise BrokenContract for what is no tensor of this shape."""
    if not isinstance(made, Tensor):
        raise BrokenContract(f"{name} is a tensor of shape {list(shape)}: it is {shown(made)}.")
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
    return mean(scores.softmax(-1), values)


def lookalikes(draw: Draw) -> dict[str, Tensor]:
    """By a sentence, what a likely mistake makes of a draw."""
    query, keys, key_scales, values, value_scales = (each.double() for each in draw)
    scores = (keys @ query[..., None])[..., 0] * query.shape[-1] ** -0.5
    weights, without_keys = (scores * key_scales).softmax(-1), scores.softmax(-1)
    swapped, both = (scores * value_scales).softmax(-1), key_scales * value_scales
    scaled = weights * value_scales
    made_of = {
        "The whole numbers were taken as they are: no scale is used yet.": without_keys,
        "The scales of the keys are missing: a score is the product of query and number, times the token's "
        "scale.": without_keys * value_scales,
        "The scales of the values are missing.": weights,
        "The scales are swapped: the key's belongs to the score, the value's to the weight.": swapped
        * key_scales,
        "Both scales are inside of the softmax, and the value's belongs behind it.": (scores * both).softmax(
            -1
        ),
        "Both scales are behind the softmax, and the key's belongs inside.": without_keys * both,
        "The weights no longer add up to 1 when they have their scales, and must not: do not divide by "
        "their sum again.": scaled / scaled.sum(-1, keepdim=True),
    }
    return {sentence: mean(weights, values) for sentence, weights in made_of.items()}


def mean(weights: Tensor, values: Tensor) -> Tensor:
    """Values [H, T, D] by weights [H, T]: [H, D]."""
    return (weights[:, None] @ values)[:, 0]


def check_attend(attend: Attend, quantize: Quantize) -> Report:
    """Whether a function is attention over numbers and scales; and whether an engine with both of the
    reader's functions goes on as rung 16."""

    def trial() -> None:
        again = ((draw, draw._replace(query=-draw.query)) for draw in draws())  # two calls of one shape
        for draw in chain.from_iterable(again):
            made, expected = answer_of(attend, *draw), attention_in_float64(*draw)
            check_shape("the result", made, expected.shape)
            close = torch.isclose(made.double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
            for place in (~close).nonzero().tolist():
                alike = [s for s, other in lookalikes(draw).items() if torch.allclose(made.double(), other)]
                raise BrokenContract(
                    f"a score is multiplied by its key's scale, a weight by its value's: {draw.words}, value "
                    f"{place} is {made[tuple(place)]:.5f}, expected {expected[tuple(place)]:.5f}. "
                    f"{alike[0] if alike else ''}"
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
    for text, made, expected in zip(TEXTS, texts_with(attention), package_texts(), strict=True):
        check_text("the text is rung 16's:", text, made, expected)


def check_text(about: str, text: str, made: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise BrokenContract unless the small model's text goes on with the tokens that it should."""
    if made != expected:
        decode = trained_model().tokenizer.decode
        raise BrokenContract(
            f"{about} {text!r} goes on with {decode(made)!r}, expected {decode(expected)!r}."
        )


def texts_with(attention: EightBitAttention | None) -> list[tuple[int, ...]]:
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


@cache
def package_texts() -> list[tuple[int, ...]]:
    return texts_with(None)


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


def before_quantizing(draw: Draw, numbers: torch.Generator | None) -> Draw:
    """Keys and values that are rounded to those of a draw. Each is off by half a step at most: at random, or
    (None) so that the scores of every other token rise, the others' fall, and all values rise."""
    T = draw.keys.shape[1]
    if numbers is not None:
        off = [torch.rand(draw.keys.shape, generator=numbers) - 0.5 for _ in range(2)]
    else:
        rises = torch.where(torch.arange(T) % 2 == 0, 0.49, -0.49)
        off = [draw.query.sign()[:, None] * rises[None, :, None], torch.full(draw.values.shape, 0.49)]
    return draw._replace(keys=draw.keys + off[0], values=draw.values + off[1])


def check_bound(given: Bound) -> Report:
    """Whether a function bounds the error in every draw, also where all errors add up, and says something."""

    def trial() -> None:
        numbers = torch.Generator().manual_seed(18)
        for draw in map(with_two_that_count, draws(), count()):
            said = answer_of(given, draw.query, draw.key_scales, draw.value_scales)
            check_shape("the bound", said, draw.query.shape[:1])
            for direction, generator in (("at random", numbers), ("so that all errors add up", None)):
                true = attention_in_float64(*before_quantizing(draw, generator))
                error = (attention_in_float64(*draw) - true).abs().amax(-1)
                for (h,) in (~(error <= said)).nonzero().tolist():  # or where a bound is no number
                    raise BrokenContract(
                        f"no error is larger than the bound: {draw.words}, rounded {direction}, head {h} is "
                        f"off by {error[h]:.5f}, and the bound says {said[h]:.5f}."
                    )
            least = bound(draw.query, draw.key_scales, draw.value_scales)
            for (h,) in (said > 4 * least).nonzero().tolist():
                raise BrokenContract(
                    f"a bound says how large an error can be, and not much more: {draw.words}, head {h} is "
                    f"bounded by {said[h]:.5f}, and {least[h]:.5f} can be shown."
                )

    proof = f"{2 * NUM_DRAWS} random draws against float64, in half of which all errors add up."
    return noted(proven("my_bound", [trial], proof), "16", "my_bound", given)


def texts_of(quantize: Quantize) -> dict[str, str]:
    """How an engine of rung 16 that quantizes so, as it decodes, goes on with TEXTS."""
    decode = trained_model().tokenizer.decode
    made = texts_with(EightBitAttention(quantize, attention_in_float64))
    return dict(zip(TEXTS, map(decode, made), strict=True))
