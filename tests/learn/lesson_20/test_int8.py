"""Lesson 20's 8 bits: a network with other matrices, the engines that take it, and the gates of the reader's:
likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
import torch
from gate_tests import mistake_tests
from helpers import make_engine
from torch import nn

from labkit import LADDER, InferenceEngine, SamplingParams
from labkit.bench import dense_tokens
from labkit.errors import OptionError
from labkit.learn.gates.gate import small_model
from labkit.learn.lesson_20 import int8
from labkit.learn.lesson_20.int8 import Int8Linear, Int8Network, check_model, int8_model, logits_off
from labkit.learn.progress import LessonProgress, progress
from labkit.paths import ROOT

MATRIX, LAYER, *_ = range(5)
RETURNED = "(weight / scale).round().to(torch.int8), scale"
FLOATS = "self.numbers.to(x.dtype) * self.scale.to(x.dtype)"
PRODUCT = f"        return F.linear(x, {FLOATS}, self.bias)"
UNSCALED = "F.linear(x, self.numbers.to(x.dtype), self.bias)"
SCALED = """        out = F.linear(x, self.numbers.to(x.dtype)) * self.scale.to(x.dtype).T
        return out if self.bias is None else out + self.bias"""
BIAS = "        self.bias = linear.bias"
CHECKED = "check_layer(MyInt8Linear)"
MISTAKES = [
    (MATRIX, "torch.int8", "torch.uint8", "torch.uint8, expected torch.int8"),
    (MATRIX, "dim=1", "dim=0", "one scale per row"),
    (MATRIX, ".abs()", "", "whatever its sign, becomes 127"),
    (MATRIX, ".round()", ".trunc()", "rounded to the nearest"),
    (MATRIX, "(weight / scale)", "weight.div_(scale)", "changed in place"),
    (MATRIX, "torch.where(scale == 0, 1, scale)", "scale", "a scale is a finite number above 0 found for a"),
    (MATRIX, f"return {RETURNED}", "pass", "raised TypeError"),
    (LAYER, CHECKED, "check_layer(lambda linear: linear)", "None of its tensors is torch.int8: fill in step"),
    (LAYER, PRODUCT, f"        return {UNSCALED} * self.scale.to(x.dtype).T", "the bias is added once, and"),
    (LAYER, PRODUCT, f"{PRODUCT}.float()", "in torch.float32, expected (2, 5, 6) in torch.float16"),
    (LAYER, PRODUCT, PRODUCT.replace("return", ""), "raised AttributeError"),
    (LAYER, PRODUCT, SCALED, ""),
    (LAYER, BIAS, f"{BIAS}\n        self.old = linear", "Keep neither the old layer nor its matrix"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "20_complete_engine.ipynb", MISTAKES
)


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
    # The package's own is no progress of the reader's.
    assert "weights" not in progress().get("20", LessonProgress()).gates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (only_small, "bytes per weight of its matrices, expected 1 to 1.05"),
        (CoarseWhereLarge, "logits stay near: after 'To be, or not to be' they are off by"),
        (DependsOnTheBatch, "the engine's tokens are those that its model makes"),
    ],
)
def test_a_wrong_model_is_refused(attempt, words):
    report = check_model(attempt)
    assert not report.ok and words in report.text


def test_logits_are_off_by_a_share_of_their_spread(tiny):
    assert logits_off(tiny, tiny, "O") == 0
    rounded = int8_model(tiny, Int8Linear)
    assert 0.001 < logits_off(tiny, rounded, "O") < int8.OF_LOGITS / 2


# --- a network ---------------------------------------------------------------------------------------


def test_every_matrix_is_replaced_and_the_model_is_left_alone():
    before = small_model()
    network = Int8Network(before.network, Int8Linear)
    assert not [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert sum(isinstance(m, Int8Linear) for m in network.modules()) == 2 * 4 + 1
    assert sum(isinstance(m, nn.Linear) for m in before.network.modules()) == 2 * 4 + 1
    assert isinstance(network.lm_head, Int8Linear)


def test_to_another_dtype_the_numbers_stay_8_bits():
    model = int8_model(small_model(), Int8Linear).to("cpu", torch.float16)
    head = model.network.lm_head
    assert (head.numbers.dtype, head.scale.dtype, model.dtype) == (torch.int8, torch.float16, torch.float16)
    assert model.name == "random:small with weights in 8 bits"


def test_an_engine_with_fused_layers_refuses_it():
    model = int8_model(small_model(), Int8Linear)
    with pytest.raises(OptionError, match=r"does not fit Int8Network.*layer_kernels = 'separate'"):
        make_engine(model, LADDER["10"].options)


@pytest.mark.cuda
def test_on_a_gpu_a_graph_of_layers_in_8_bits_makes_the_models_own_tokens(tiny):
    model = int8_model(tiny, Int8Linear).to("cuda", torch.float32)
    prompts = [tiny.tokenizer.encode(text) for text in ("To be, or not", "JULIET:\n")]
    engine = InferenceEngine(model, int8.OPTIONS, device="cuda", dtype=torch.float32)
    done = engine.generate(prompts, SamplingParams(16, stop_on_eos=False))
    assert engine.stats().launch == "graph"
    assert [completion.token_ids for completion in done] == dense_tokens(model, prompts, 16)
