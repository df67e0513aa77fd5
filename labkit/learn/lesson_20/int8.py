"""Lesson 20: a network whose matrices are kept in 8 bits, in plain PyTorch."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.bench import Workload, in_turn
from labkit.bench.limit import decode_weight_bytes, on_paper
from labkit.engine import SchedulerConfig
from labkit.engine.parts import Part
from labkit.ladder import LADDER
from labkit.learn.assembly import Assembly
from labkit.model import Attend, LanguageModel, Network
from labkit.results import Comparison
from labkit.results.runs import compared_runs

LARGEST = 127  # of int8, on both sides of 0
# The fused kernels of rung 09 read weights of 16 or 32 bits, so this is rung 10 with rung 08's layers.
RUNG = LADDER["10"]
OPTIONS = replace(RUNG.options, layer_kernels="separate")

MakeLayer = Callable[[nn.Linear], nn.Module]


class Int8Network(Network):
    """A network in which other layers have taken the place of its matrices: of each `nn.Linear`, and so of
    the head, which is tied to the token table no more. Both tables stay as they are: a step reads few rows.

    It has no `decoder_weights`, so an engine with fused layers refuses it.
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


def parts_below(mine: Assembly) -> dict[str, Part]:
    """The reader's parts that an engine of OPTIONS is built from.

    Without those for other layers, and without `launch`: on a CPU, where this is proven, it only costs time.
    """
    return mine.without("layer_kernels", "launch").parts_on(RUNG.number)


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


# --- what it costs ----------------------------------------------------------------------------------------


def int8_on_paper() -> Network:
    """GPT-2 with its matrices in 8 bits, which has sizes and no numbers."""
    return Int8Network(on_paper("gpt2"), Int8Linear)


def megabytes(model: LanguageModel) -> float:
    """Megabytes of weights that a decode step of the model reads."""
    return 1e-6 * decode_weight_bytes(model.network)


def compare_models(
    before: LanguageModel,
    after: LanguageModel,
    device: torch.device | str,
    names: tuple[str, str],
    parts: Mapping[str, Part],
) -> Comparison:
    """Decode the same few requests on engines of OPTIONS with one model and with the other, in turn.

    parts: the engines', by option, in place of the package's.
    """
    prompts = ((1, 2, 3),) * 4
    scheduler = SchedulerConfig(max_batch_size=len(prompts))
    works = [
        Workload.alike(model, prompts, 24, device=device, scheduler=scheduler) for model in (before, after)
    ]
    measures = [lambda work=work: work.run(work.make_engine(OPTIONS, parts)) for work in works]
    return compared_runs(*in_turn(measures, 4, warm_up=1), names)
