"""Lesson 20: the gates of weights in 8 bits: how a matrix is rounded, what a layer computes, what it holds,
and whether the engine is still right.

Greedy tokens may differ from those of the model before, so they are compared with the same weights' own.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.bench import dense_tokens
from labkit.bench.limit import decode_weight_bytes
from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.parts import NO_PARTS, Part
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import (
    NUM_MOVES,
    NUM_TOKENS,
    SEEDS,
    TEXTS,
    Report,
    proven,
    small_model,
    trained_model,
)
from labkit.learn.gates.schedule import Schedule
from labkit.learn.lesson_20.int8 import LARGEST, OPTIONS, MakeLayer, int8_model
from labkit.learn.lesson_20.int8 import quantize as package_quantize
from labkit.learn.steps import noted
from labkit.model import LanguageModel

Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]
ROUNDING = 1e-3  # of a scale: a quotient in float32 may fall on either side of a half
PER_LAYER = 1e-3  # of a product's size: sums in another order
OF_LOGITS = 0.02  # of their spread, as root mean square; the package's layer is off by a quarter of that
PER_WEIGHT = 1.05  # bytes, with scales, biases and norms


# --- a matrix ---------------------------------------------------------------------------------------------


def check_quantize(quantize: Quantize) -> Report:
    """Whether a function makes int8 of a matrix [O, I], and a scale per row, as near as rounding allows."""
    proof = "2 matrices, every weight within half a scale of its row."
    report = proven("quantize", [partial(_trial_of_quantize, quantize)], proof)
    return noted(report, "20", "quantize", quantize)


def _trial_of_quantize(quantize: Quantize) -> None:
    drawn = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    zeros = drawn.clone()
    zeros[4] = 0
    for what, weight in {"a drawn matrix": drawn, "a matrix with a row of zeros": zeros}.items():
        given = weight.clone()
        answer = quantize(given)
        if not torch.equal(given, weight):
            raise BrokenContract(f"the model's own weights stay as they are: {what} was changed in place.")
        match answer:
            case (Tensor(), Tensor()):
                _check_numbers(what, weight, *answer)
            case _:
                raise BrokenContract(
                    f"numbers and scales are returned: {what} gave {shown(answer)}, expected two tensors."
                )


def _check_numbers(what: str, weight: Tensor, numbers: Tensor, scale: Tensor) -> None:
    rows = len(weight)
    if numbers.dtype != torch.int8:
        raise BrokenContract(f"numbers are int8: for {what} they are {numbers.dtype}, expected torch.int8.")
    if numbers.shape != weight.shape or tuple(scale.shape) != (rows, 1):
        shapes = f"{tuple(numbers.shape)} and {tuple(scale.shape)}"
        wanted = f"{tuple(weight.shape)} and {(rows, 1)}"
        raise BrokenContract(f"one scale per row: shapes for {what} are {shapes}, expected {wanted}.")
    if not (torch.isfinite(scale) & (scale > 0)).all():
        raise BrokenContract(
            f"a scale is a finite number above 0: for {what} they are {scale.flatten().tolist()}. A row of "
            "zeros has nothing to scale, and any scale but 0 will do."
        )
    off = (numbers.float() * scale - weight).abs()
    half = weight.abs().amax(dim=1, keepdim=True) / LARGEST * (0.5 + ROUNDING)
    wrong = (~(off <= half)).nonzero().tolist()
    if wrong:
        row, place = wrong[0]
        raise BrokenContract(
            f"a weight is off by half a scale of its row at most: in {what}, [{row}, {place}] is "
            f"{weight[row, place].item():.4g}, and {numbers[row, place].item()} times "
            f"{scale[row, 0].item():.4g} is off by {off[row, place].item():.3g}, expected at most "
            f"{half[row, 0].item():.3g}. The row's largest number, whatever its sign, becomes {LARGEST}; "
            "the others are rounded to the nearest."
        )


# --- a layer ----------------------------------------------------------------------------------------------


def check_layer(make_layer: MakeLayer) -> Report:
    """Whether a layer holds 8 bits per weight, and computes what its rounded weights do."""
    proof = "2 layers: 8 bits per weight are held, and the products are those of the rounded weights."
    report = proven("layer", [partial(_trial_of_layer, make_layer)], proof)
    return noted(report, "20", "layer", make_layer)


@torch.inference_mode()
def _trial_of_layer(make_layer: MakeLayer) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_out, num_in, has_bias in ((6, 8, True), (12, 8, False)):
        linear = nn.Linear(num_in, num_out, bias=has_bias)
        for parameter in linear.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        what = f"a layer of {num_in} to {num_out}{'' if has_bias else ', without bias'}"
        most = num_out * (num_in + 4 + 4 * has_bias)  # bytes: of numbers, scales and biases
        _check_held(what, most, linear, make_layer(linear))
        for dtype, shape in ((torch.float32, (3, num_in)), (torch.float16, (2, 5, num_in))):
            x = torch.randn(shape, generator=generator).to(dtype)
            _check_product(f"{what}, {dtype}", linear, make_layer(linear).to(dtype), x)


def _check_held(what: str, most: int, linear: nn.Linear, layer: nn.Module) -> None:
    tensors = (*layer.parameters(), *layer.buffers())
    held = sum(t.nbytes for t in tensors)
    if held > most:
        hint = "None of its tensors is torch.int8: fill in step 1 first."
        if any(t.dtype == torch.int8 for t in tensors):
            hint = "Keep neither the old layer nor its matrix."
        raise BrokenContract(
            f"8 bits per weight are held, and nothing else: {what} holds {held} bytes, expected {most}: "
            f"{linear.weight.numel()} of int8, a scale per row, and the bias. {hint}"
        )


def _check_product(what: str, linear: nn.Linear, layer: nn.Module, x: Tensor) -> None:
    made = layer(x)
    numbers, scale = package_quantize(linear.weight.detach())
    bias = None if linear.bias is None else linear.bias.detach().double()
    expected = F.linear(x.double(), numbers.double() * scale.double(), bias)
    if not isinstance(made, Tensor):
        raise BrokenContract(f"a layer returns its product: {what} gave {shown(made)}.")
    if made.shape != expected.shape or made.dtype != x.dtype:
        raise BrokenContract(
            f"a layer's product: of {what}, it is {tuple(made.shape)} in {made.dtype}, expected "
            f"{tuple(expected.shape)} in {x.dtype}, which is the input's."
        )
    off = (made.double() - expected).abs()
    bound = PER_LAYER * (1 if x.dtype == torch.float32 else 10) * expected.abs().amax()
    wrong = (~(off <= bound)).nonzero().tolist()
    if wrong:
        place = tuple(wrong[0])
        raise BrokenContract(
            f"a product is that of the rounded weights: of {what}, output {list(place)} is "
            f"{made[place].item():.3f}, expected {expected[place].item():.3f}. Row o of the numbers times "
            "scale o makes output o; the bias is added once, and has no scale."
        )


# --- a model in an engine ---------------------------------------------------------------------------------


def check_model(make_layer: MakeLayer, parts: Mapping[str, Part] = NO_PARTS) -> Report:
    """Whether an engine whose model's matrices are such layers is right: the layer alone, then bytes, logits,
    tokens, blocks.

    parts: the engine's, by option, in place of the package's. A pass is noted in your progress, once no gap
    is left.
    """
    found: list[str] = []

    def trial() -> None:
        before = trained_model()
        after = int8_model(before, make_layer)
        held = _check_bytes(before, after)
        off = _check_logits(before, after)
        num_same = _check_tokens(before, after, parts)
        _check_schedules(make_layer, parts)
        found.append(
            f"{held:.2f} bytes per weight; logits are off by {100 * off:.1f} % of their spread; "
            f"{num_same} of {len(TEXTS)} greedy texts are those of float32; {len(SEEDS)} random schedules."
        )

    report = proven("model", [partial(_trial_of_layer, make_layer), trial], "")
    report = replace(report, text=report.text + "".join(found))
    return noted(report, "20", "weights", make_layer)


def _check_bytes(before: LanguageModel, after: LanguageModel) -> float:
    """Bytes per weight of the matrices."""
    num_weights = sum(m.weight.numel() for m in before.network.modules() if isinstance(m, nn.Linear))
    held = decode_weight_bytes(after.network) / num_weights
    if not 1 <= held <= PER_WEIGHT:
        raise BrokenContract(
            f"8 bits per weight are held: a step of this model reads {held:.2f} bytes per weight of its "
            f"matrices, expected 1 to {PER_WEIGHT}."
        )
    return held


@torch.inference_mode()
def logits_off(before: LanguageModel, after: LanguageModel, text: str) -> float:
    """How far a model's logits after a text are from those of the model before: the root mean square, as a
    share of their spread (the standard deviation)."""
    input_ids = torch.tensor([before.tokenizer.encode(text)])
    lengths = torch.tensor([input_ids.shape[1]])
    right, made = (m.network.prefill(input_ids, lengths).last_logits for m in (before, after))
    return float((made - right).square().mean().sqrt() / right.std())


def _check_logits(before: LanguageModel, after: LanguageModel) -> float:
    """The worst that a text's logits are off."""
    off = {text: logits_off(before, after, text) for text in TEXTS}
    for text, share in off.items():
        if not share <= OF_LOGITS:
            raise BrokenContract(
                f"logits stay near: after {shown(text)} they are off by {100 * share:.1f} % of their spread, "
                f"expected at most {100 * OF_LOGITS:.0f} %."
            )
    return max(off.values())


def _check_tokens(before: LanguageModel, after: LanguageModel, parts: Mapping[str, Part]) -> int:
    """How many texts are those of the model before. The engine must make what its own model makes without a
    cache."""
    prompts = [after.tokenizer.encode(text) for text in TEXTS]
    cache = CacheConfig(block_size=4)
    engine = InferenceEngine(after, OPTIONS, device="cpu", dtype=torch.float32, parts=parts, cache=cache)
    done = engine.generate(prompts, SamplingParams(NUM_TOKENS, stop_on_eos=False))
    made = [completion.token_ids for completion in done]
    own, floats = (dense_tokens(model, prompts, NUM_TOKENS) for model in (after, before))
    for text, tokens, expected in zip(TEXTS, made, own, strict=True):
        for place, (token, wanted) in enumerate(zip(tokens, expected, strict=True)):
            if token != wanted:
                raise BrokenContract(
                    f"the engine's tokens are the model's: new token {place} after {shown(text)} is {token}, "
                    f"expected {wanted}, which the same model makes without a cache."
                )
    return sum(tokens == wanted for tokens, wanted in zip(made, floats, strict=True))


def _check_schedules(make_layer: MakeLayer, parts: Mapping[str, Part]) -> None:
    model = int8_model(small_model(), make_layer)

    def alone(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        return dense_tokens(model, [prompt], params.max_new_tokens)[0]

    for seed in SEEDS:
        cache = CacheConfig(block_size=4, max_blocks_per_layer=12, max_prefix_entries=3)
        scheduler = SchedulerConfig(max_batch_size=4, decode_first=bool(seed % 2))
        engine = InferenceEngine(
            model, OPTIONS, device="cpu", dtype=torch.float32, parts=parts, cache=cache, scheduler=scheduler
        )
        Schedule(engine, alone, (), seed).play(NUM_MOVES)
