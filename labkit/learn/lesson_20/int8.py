"""Lesson 20: weights in 8 bits, in plain PyTorch: a network that has them, the gates of the reader's, and
what they cost.

Greedy tokens may differ from those of the model before, so they are compared with the same weights' own.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.bench import Workload, dense_tokens, in_turn
from labkit.bench.limit import decode_weight_bytes
from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.parts import NO_PARTS, Part
from labkit.ladder import LADDER
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
from labkit.learn.lesson_16.gate import check_text
from labkit.learn.steps import noted
from labkit.model import Attend, LanguageModel, Network
from labkit.results import Comparison
from labkit.results.runs import compared_runs

LARGEST = 127  # of int8, on both sides of 0
# The fused kernels of rung 09 read weights of 16 or 32 bits, so this is rung 10 with rung 08's layers.
RUNG = LADDER["10"]
OPTIONS = replace(RUNG.options, layer_kernels="separate")
ROUNDING = 1e-3  # of a scale: a quotient in float32 may fall on either side of a half
PER_LAYER = 1e-3  # of a product's size: sums in another order
OF_LOGITS = 0.02  # of their spread, as root mean square; the package's layer is off by a quarter of that
PER_WEIGHT = 1.05  # bytes, with scales, biases and norms

Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]
MakeLayer = Callable[[nn.Linear], nn.Module]


class Int8Network(Network):
    """A network with other layers in the places of its matrices: of each `nn.Linear`, and so of the head,
    which is tied to the token table no more. Without `decoder_weights`, no engine with fused layers takes it.
    """

    def __init__(self, network: Network, make_layer: MakeLayer) -> None:
        """network: is copied. make_layer: what stands for a matrix, made from it."""
        super().__init__(network.config)
        self.inner = copy.deepcopy(network)
        linears = [(name, m) for name, m in self.inner.named_modules() if isinstance(m, nn.Linear)]
        for name, linear in linears:
            parent, _, child = name.rpartition(".")
            self.inner.get_submodule(parent).register_module(child, make_layer(linear))

    @property
    def lm_head(self) -> nn.Module:
        """What makes logits of hidden states."""
        return self.inner.lm_head

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.inner(input_ids, positions, attend)

    def lookup_tables(self) -> tuple[Tensor, ...]:
        """All tables: the head has weights of its own."""
        return tuple(m.weight for m in self.inner.modules() if isinstance(m, nn.Embedding))


def int8_model(model: LanguageModel, make_layer: MakeLayer) -> LanguageModel:
    """The model with layers of `make_layer` for its matrices, under a name of its own."""
    name = f"{model.name} with weights in 8 bits"
    return LanguageModel(name, Int8Network(model.network, make_layer), model.tokenizer)


# --- the package's way ------------------------------------------------------------------------------------


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [O, I] in int8, and a scale per row [O, 1]: their product is the matrix, but for rounding."""
    scale = weight.abs().amax(dim=1, keepdim=True) / LARGEST
    scale = torch.where(scale == 0, 1, scale)  # a row of zeros: 0 / 0 is no number
    return (weight / scale).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer that keeps its matrix in int8, and makes floats of it again in each call."""

    quantize = staticmethod(quantize)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        numbers, scale = self.quantize(linear.weight.detach())
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """The layer's product with x [..., I]: [..., O]."""
        weight = self.numbers.to(x.dtype) * self.scale.to(x.dtype)
        return F.linear(x, weight, self.bias)


def signless(weight: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize`, and wrong on purpose: a row's largest value is found without `abs()`, so a large
    negative value can overflow int8 and come back positive."""
    scale = weight.amax(dim=1, keepdim=True) / LARGEST
    return (weight / scale).round().to(torch.int8), scale


class SignlessLinear(Int8Linear):
    """An `Int8Linear` whose matrix is rounded by `signless`."""

    quantize = staticmethod(signless)


# --- step 1: a matrix -------------------------------------------------------------------------------------


def check_quantize(part: Quantize) -> Report:
    """Whether a function makes int8 of a matrix [O, I], and a scale per row, as near as rounding allows."""

    def trial() -> None:
        drawn = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
        zeros = drawn.clone()
        zeros[4] = 0
        for what, weight in {"a drawn matrix": drawn, "a matrix with a row of zeros": zeros}.items():
            given = weight.clone()
            numbers, scale = part(given)
            if not torch.equal(given, weight):
                raise BrokenContract(
                    f"the model's own weights stay as they are: {what} was changed in place."
                )
            check_numbers(what, weight, numbers, scale)

    proof = "2 matrices, every weight within half a scale of its row."
    return noted(proven("quantize", [trial], proof), "20", "quantize", part)


def check_numbers(what: str, weight: Tensor, numbers: Tensor, scale: Tensor) -> None:
    """Raise BrokenContract unless int8 numbers times the scales of their rows are near to a weight."""
    if numbers.dtype != torch.int8:
        raise BrokenContract(f"numbers are int8: for {what} they are {numbers.dtype}, expected torch.int8.")
    shapes, wanted = (tuple(numbers.shape), tuple(scale.shape)), (tuple(weight.shape), (len(weight), 1))
    if shapes != wanted:
        raise BrokenContract(f"one scale per row: shapes for {what} are {shapes}, expected {wanted}.")
    if not (torch.isfinite(scale) & (scale > 0)).all():
        raise BrokenContract(
            f"a scale is a finite number above 0: for {what} they are {scale.flatten().tolist()}. A row of "
            "zeros has nothing to scale, and any scale but 0 will do."
        )
    off = (numbers.float() * scale - weight).abs()
    half = weight.abs().amax(dim=1, keepdim=True) / LARGEST * (0.5 + ROUNDING)
    for row, place in (~(off <= half)).nonzero().tolist()[:1]:
        raise BrokenContract(
            f"a weight is off by half a scale of its row at most: in {what}, [{row}, {place}] is "
            f"{weight[row, place]:.4g}, and {numbers[row, place]} times {scale[row, 0]:.4g} is off by "
            f"{off[row, place]:.3g}, expected at most {half[row, 0]:.3g}. The row's largest number, whatever "
            f"its sign, becomes {LARGEST}; the others are rounded to the nearest."
        )


# --- step 2: a layer --------------------------------------------------------------------------------------


def check_layer(make_layer: MakeLayer) -> Report:
    """Whether a layer holds 8 bits per weight, and computes what its rounded weights do."""
    proof = "2 layers: 8 bits per weight are held, and the products are those of the rounded weights."
    report = proven("layer", [partial(check_layers, make_layer)], proof)
    return noted(report, "20", "layer", make_layer)


@torch.inference_mode()
def check_layers(make_layer: MakeLayer) -> None:
    """Raise BrokenContract unless two layers, one without a bias, are right in float32 and in float16."""
    generator = torch.Generator().manual_seed(0)
    for num_out, num_in, has_bias in ((6, 8, True), (12, 8, False)):
        linear = nn.Linear(num_in, num_out, bias=has_bias)
        for parameter in linear.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        what = f"a layer of {num_in} to {num_out}{'' if has_bias else ', without bias'}"
        most = num_out * (num_in + 4 + 4 * has_bias)  # bytes: of numbers, scales and biases
        check_held(what, most, make_layer(linear))
        for dtype, shape in ((torch.float32, (3, num_in)), (torch.float16, (2, 5, num_in))):
            x = torch.randn(shape, generator=generator).to(dtype)
            check_product(f"{what}, {dtype}", linear, make_layer(linear).to(dtype)(x), x)


def check_held(what: str, most: int, layer: nn.Module) -> None:
    """Raise BrokenContract if a layer's tensors have more bytes than these."""
    tensors = (*layer.parameters(), *layer.buffers())
    if (held := sum(t.nbytes for t in tensors)) > most:
        hint = "None of its tensors is torch.int8: fill in step 1 first."
        if any(t.dtype == torch.int8 for t in tensors):
            hint = "Keep neither the old layer nor its matrix."
        raise BrokenContract(
            f"8 bits per weight are held, and nothing else: {what} holds {held} bytes, expected {most}: a "
            f"byte per weight, a scale per row, and the bias. {hint}"
        )


def check_product(what: str, linear: nn.Linear, made: Tensor, x: Tensor) -> None:
    """Raise BrokenContract unless a layer has made the product of x and its rounded weights."""
    numbers, scale = quantize(linear.weight.detach())
    bias = None if linear.bias is None else linear.bias.detach().double()
    expected = F.linear(x.double(), numbers.double() * scale.double(), bias)
    if made.shape != expected.shape or made.dtype != x.dtype:
        raise BrokenContract(
            f"a layer's product: of {what}, it is {tuple(made.shape)} in {made.dtype}, expected "
            f"{tuple(expected.shape)} in {x.dtype}, which is the input's."
        )
    bound = PER_LAYER * (1 if x.dtype == torch.float32 else 10) * expected.abs().amax()
    for place in (~((made.double() - expected).abs() <= bound)).nonzero().tolist()[:1]:
        raise BrokenContract(
            f"a product is that of the rounded weights: of {what}, output {place} is {made[*place]:.3f}, "
            f"expected {expected[*place]:.3f}. Row o of the numbers times scale o makes output o; the bias "
            "is added once, and has no scale."
        )


# --- step 3: a model in an engine -------------------------------------------------------------------------


def check_model(make_layer: MakeLayer, parts: Mapping[str, Part] = NO_PARTS) -> Report:
    """Whether an engine whose model's matrices are such layers is right: the layer alone, then bytes, logits,
    tokens, blocks. parts: the engine's, by option, in place of the package's."""
    found: list[str] = []

    def trial() -> None:
        before = trained_model()
        after = int8_model(before, make_layer)
        num_weights = sum(m.weight.numel() for m in before.network.modules() if isinstance(m, nn.Linear))
        held = decode_weight_bytes(after.network) / num_weights
        if not 1 <= held <= PER_WEIGHT:
            raise BrokenContract(
                f"8 bits per weight are held: a step of this model reads {held:.2f} bytes per weight of its "
                f"matrices, expected 1 to {PER_WEIGHT}."
            )
        off = {text: logits_off(before, after, text) for text in TEXTS}
        for text, share in off.items():
            if not share <= OF_LOGITS:
                raise BrokenContract(
                    f"logits stay near: after {shown(text)} they are off by {100 * share:.1f} % of their "
                    f"spread, expected at most {100 * OF_LOGITS:.0f} %."
                )
        num_same = check_tokens(before, after, parts)
        check_schedules(make_layer, parts)
        found.append(
            f"{held:.2f} bytes per weight; logits are off by {100 * max(off.values()):.1f} % of their "
            f"spread; {num_same} of {len(TEXTS)} greedy texts are those of float32; {len(SEEDS)} random "
            "schedules."
        )

    report = proven("model", [partial(check_layers, make_layer), trial], "")
    report = replace(report, text=report.text + "".join(found))
    return noted(report, "20", "weights", make_layer)


@torch.inference_mode()
def logits_off(before: LanguageModel, after: LanguageModel, text: str) -> float:
    """How far a model's logits after a text are from those of the model before: the root mean square, as a
    share of their spread (the standard deviation)."""
    input_ids = torch.tensor([before.tokenizer.encode(text)])
    lengths = torch.tensor([input_ids.shape[1]])
    right, made = (m.network.prefill(input_ids, lengths).last_logits for m in (before, after))
    return float((made - right).square().mean().sqrt() / right.std())


def check_tokens(before: LanguageModel, after: LanguageModel, parts: Mapping[str, Part]) -> int:
    """How many texts are those of the model before. Raises BrokenContract unless the engine makes what its
    own model makes without a cache."""
    prompts = [after.tokenizer.encode(text) for text in TEXTS]
    engine = engine_of(after, parts, cache=CacheConfig(block_size=4))
    done = engine.generate(prompts, SamplingParams(NUM_TOKENS, stop_on_eos=False))
    own, floats = (dense_tokens(model, prompts, NUM_TOKENS) for model in (after, before))
    about = "the engine's tokens are those that its model makes without a cache:"
    for text, completion, expected in zip(TEXTS, done, own, strict=True):
        check_text(about, text, completion.token_ids, expected)
    return sum(mine == wanted for mine, wanted in zip(own, floats, strict=True))


def check_schedules(make_layer: MakeLayer, parts: Mapping[str, Part]) -> None:
    """Raise BrokenContract if a request of a random schedule gets other tokens than alone, or a block is
    lost."""
    model = int8_model(small_model(), make_layer)

    def alone(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        return dense_tokens(model, [prompt], params.max_new_tokens)[0]

    for seed in SEEDS:
        cache = CacheConfig(block_size=4, max_blocks_per_layer=12, max_prefix_entries=3)
        scheduler = SchedulerConfig(max_batch_size=4, decode_first=bool(seed % 2))
        engine = engine_of(model, parts, cache=cache, scheduler=scheduler)
        Schedule(engine, alone, (), seed).play(NUM_MOVES)


def engine_of(model: LanguageModel, parts: Mapping[str, Part], **settings: Any) -> InferenceEngine:
    """An engine of OPTIONS with these parts, on a CPU in float32."""
    return InferenceEngine(model, OPTIONS, device="cpu", dtype=torch.float32, parts=parts, **settings)


# --- what it costs ----------------------------------------------------------------------------------------


def compare_models(
    before: LanguageModel,
    after: LanguageModel,
    device: torch.device | str,
    names: tuple[str, str],
    parts: Mapping[str, Part],
) -> Comparison:
    """Decode the same few requests on engines of OPTIONS with these parts, with one model and with the other,
    in turn."""
    prompts = ((1, 2, 3),) * 4
    scheduler = SchedulerConfig(max_batch_size=len(prompts))
    works = [
        Workload.alike(model, prompts, 24, device=device, scheduler=scheduler) for model in (before, after)
    ]
    measures = [lambda work=work: work.run(work.make_engine(OPTIONS, parts)) for work in works]
    return compared_runs(*in_turn(measures, 4, warm_up=1), names)
