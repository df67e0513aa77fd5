"""Lesson 20's gates: weights in 8 bits pass, and plausible wrong ones are refused by what they break."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labkit.learn.lesson_20 import gate
from labkit.learn.lesson_20.gate import check_layer, check_model, check_quantize, logits_off
from labkit.learn.lesson_20.int8 import Int8Linear, SignlessLinear, int8_model, quantize, signless
from labkit.learn.progress import progress

# --- a matrix -----------------------------------------------------------------------------------------


def by_scale(scale_of, round_of=torch.round, dtype=torch.int8):
    def rounded(weight):
        scale = scale_of(weight)
        scale = torch.where(scale == 0, 1, scale)
        return round_of(weight / scale).to(dtype), scale

    return rounded


def largest(weight):
    return weight.abs().amax(1, keepdim=True)


def in_place(weight):
    numbers, scale = quantize(weight)
    weight.div_(scale)
    return numbers, scale


def zeros_by_zero(weight):
    scale = largest(weight) / 127
    return (weight / scale).round().to(torch.int8), scale


WRONG_MATRICES = {
    "the skeleton": (lambda w: (w, torch.ones_like(w[:, :1])), "int8: for a drawn matrix they are torch.f"),
    "uint8": (by_scale(lambda w: largest(w) / 127, dtype=torch.uint8), "torch.uint8, expected torch.int8"),
    "one scale for all": (lambda w: by_scale(lambda w: (w.abs().max() / 127).expand(len(w), 1))(w), "half a"),
    "a scale per column": (by_scale(lambda w: w.abs().amax(0, keepdim=True) / 127), "one scale per row"),
    "without the sign": (signless, "whatever its sign, becomes 127"),
    "cut, not rounded": (by_scale(lambda w: largest(w) / 127, torch.trunc), "rounded to the nearest"),
    "in place": (in_place, "changed in place"),
    "with zero as the scale of zeros": (
        zeros_by_zero,
        "a scale is a finite number above 0: for a matrix with",
    ),
    "numbers alone": (lambda w: quantize(w)[0], "expected two tensors"),
    "nothing": (lambda w: None, "gave None, expected two tensors"),
}
RIGHT_MATRICES = {
    "the package's": quantize,
    "a list": lambda w: list(quantize(w)),
    "in float32": lambda w: quantize(w.float()),
    "clamped": lambda w: (
        (w / (largest(w) / 127).clamp(min=1e-7)).round().clamp(-127, 127).to(torch.int8),
        (largest(w) / 127).clamp(min=1e-7),
    ),
    "row by row": lambda w: tuple(map(torch.cat, zip(*[quantize(row[None]) for row in w], strict=True))),
}


@pytest.mark.parametrize(("attempt", "words"), WRONG_MATRICES.values(), ids=WRONG_MATRICES)
def test_a_wrong_rounding_is_refused(attempt, words):
    report = check_quantize(attempt)
    assert not report.ok and words in report.text
    assert report.text.startswith("quantize ")


@pytest.mark.parametrize("attempt", RIGHT_MATRICES.values(), ids=RIGHT_MATRICES)
def test_a_right_rounding_passes(attempt):
    report = check_quantize(attempt)
    assert report.ok, report.text
    assert report.text == "quantize: right. 7 matrices, every weight within half a scale of its row."


# --- a layer ------------------------------------------------------------------------------------------


class WithoutScale(Int8Linear):
    def forward(self, x):
        return F.linear(x, self.numbers.to(x.dtype), self.bias)


class ScaledBias(Int8Linear):
    def forward(self, x):
        return F.linear(x, self.numbers.to(x.dtype), self.bias) * self.scale.to(x.dtype).T


class InFloat32(Int8Linear):
    def forward(self, x):
        return super().forward(x).float()


class KeepsTheOldLayer(Int8Linear):
    def __init__(self, linear):
        super().__init__(linear)
        self.old = linear


class PlainAttributes(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.numbers, self.scale = quantize(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, x):
        return F.linear(x, self.numbers.to(x.dtype) * self.scale.to(x.dtype), self.bias)


class KeepsFloatsOfTheFirstCall(Int8Linear):
    kept = None

    def forward(self, x):
        if self.kept is None or self.kept.dtype != x.dtype:
            self.kept = self.numbers.to(x.dtype) * self.scale.to(x.dtype)
        return F.linear(x, self.kept, self.bias)


class HidesTheOldLayer(Int8Linear):
    def __init__(self, linear):
        super().__init__(linear)
        self.old = [linear]


WRONG_LAYERS = {
    "the old layer": (lambda linear: linear, "None of its tensors is torch.int8: fill in step 1 first"),
    "without the scale": (WithoutScale, "Row o of the numbers times scale o makes output o"),
    "a scaled bias": (ScaledBias, "the bias is added once, and has no scale"),
    "another dtype": (InFloat32, "in torch.float32, expected (2, 5, 6) in torch.float16"),
    "both layers": (KeepsTheOldLayer, "Keep neither the old layer nor its matrix"),
    "floats of the first call": (KeepsFloatsOfTheFirstCall, "Make floats of the numbers anew in each call"),
    "the old layer in a list": (HidesTheOldLayer, "nor the old layer, its matrix or an input"),
    "plain attributes": (PlainAttributes, "Use `register_buffer`"),
    "signless": (SignlessLinear, "a product is that of the rounded weights"),
    "no layer": (lambda linear: None, "a layer is an nn.Module: a layer of 8 to 6 is None"),
}


class ScaledOutputs(Int8Linear):
    def forward(self, x):
        out = F.linear(x, self.numbers.to(x.dtype)) * self.scale.to(x.dtype).T
        return out if self.bias is None else out + self.bias


RIGHT_LAYERS = {"the package's": Int8Linear, "scaled outputs": ScaledOutputs}


@pytest.mark.parametrize(("attempt", "words"), WRONG_LAYERS.values(), ids=WRONG_LAYERS)
def test_a_wrong_layer_is_refused(attempt, words):
    report = check_layer(attempt)
    assert not report.ok and words in report.text


@pytest.mark.parametrize("attempt", RIGHT_LAYERS.values(), ids=RIGHT_LAYERS)
def test_a_right_layer_passes(attempt):
    report = check_layer(attempt)
    assert report.ok, report.text
    assert report.text.startswith("layer: right. 3 layers: ")


# --- a model in an engine -----------------------------------------------------------------------------


class DependsOnTheBatch(Int8Linear):
    """Off where more than two requests are computed together."""

    def forward(self, x):
        many = x.dim() == 3 and len(x) > 2
        return super().forward(x) + (2.0 if many else 0) * torch.arange(self.numbers.shape[0])


class CoarseWhereLarge(Int8Linear):
    """Of 4 bits in matrices that are larger than those of the layer's own gate."""

    def __init__(self, linear):
        super().__init__(linear)
        if linear.in_features > 8:
            self.numbers = (self.numbers / 16).round().to(torch.int8) * 16


def only_small(linear):
    return Int8Linear(linear) if linear.in_features <= 8 else linear


@pytest.mark.slow
def test_a_right_model_passes_and_says_what_it_holds():
    report = check_model(Int8Linear)
    assert report.ok, report.text
    assert report.text.startswith("model: right. 1.03 bytes per weight; logits are off by 0.5 % of ")
    assert not progress().get("20")  # the package's own is no progress of the reader's


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (PlainAttributes, "what a layer holds moves with it: a layer of 8 to 6 has"),
        (only_small, "bytes per weight of its matrices, expected 1 to 1.05"),
        (CoarseWhereLarge, "logits stay near: after 'To be, or not to be' they are off by"),
        (DependsOnTheBatch, "the engine's tokens are the model's: new token"),
    ],
)
def test_a_wrong_model_is_refused(attempt, words):
    report = check_model(attempt)
    assert not report.ok and words in report.text


def test_logits_are_off_by_a_share_of_their_spread(tiny):
    assert logits_off(tiny, tiny, "O") == 0
    rounded = int8_model(tiny, Int8Linear)
    assert 0.001 < logits_off(tiny, rounded, "O") < gate.OF_LOGITS / 2
