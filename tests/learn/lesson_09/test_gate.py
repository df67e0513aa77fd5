"""Lesson 09's gate: fused steps pass, and plausible wrong ones are refused by what they break."""

import pytest
import torch
import torch.nn.functional as F
from gate_tests import gate_tests

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import FusedDeviceStep
from labkit.kernels.fused_linear import row_statistics
from labkit.learn import not_attempted
from labkit.learn.lesson_09.splits import SplitThenMerge, merge_plain
from labkit.learn.lesson_09.steps import ForgetsAPart, TenKernelStep, with_mine

pytestmark = pytest.mark.slow


class InOneLoop(FusedDeviceStep):
    """The step as a loop over layers whose pieces can be got wrong one by one."""

    def through_layers(self, slot_mapping, max_context_len):
        slots = self.slots
        self.attention.begin(slots, slot_mapping, max_context_len)
        x, statistics = self.kernels.embed(
            slot_mapping, slots.last_token_ids, slots.context_lens, *self._tables
        )
        for layer_idx, layer in enumerate(self.layers):
            attended = self.attend(layer_idx, self.kernels.norm_linear(x, statistics, layer.qkv))
            x, statistics = self.kernels.linear_residual(attended, *layer.attention_out, x)
            x, statistics = self.mlp(layer, x, statistics)
        return x

    def logits(self, x):
        normed = F.layer_norm(x, x.shape[1:], eps=self.head.eps)
        return self.cut(F.linear(normed, self.head.weight, self.head.bias))

    def mlp(self, layer, x, statistics):
        inner = self.kernels.norm_linear(x, statistics, layer.mlp_in, gelu=True)
        return self.kernels.linear_residual(inner, *layer.mlp_out, x)

    def cut(self, logits):
        return logits[:, : self._vocab_size]


class Separate(FusedDeviceStep):
    """PyTorch's operators, as on the rung below."""

    __call__, take_likeliest = DeviceStep.__call__, DeviceStep.take_likeliest


class PaddedVocabulary(InOneLoop):
    """Leaves the rows of zeros in the head's logits: among them are the likeliest."""

    def cut(self, logits):
        return logits


class DoesNotAdvance(InOneLoop):
    def advance(self, token_ids, slot_mapping):
        return token_ids


class WithKernels(FusedDeviceStep):
    """The package's step with other kernels; the class says which."""

    def __init__(self, slots, network, attention, kernels):
        attention = AttendAndWrite(attention.kv_manager, self.attention_of(attention.attention))
        super().__init__(slots, network, attention, self.kernels_of(kernels))

    def attention_of(self, attention):
        return attention

    def kernels_of(self, kernels):
        return kernels


class Merges(WithKernels):
    def attention_of(self, attention):
        return SplitThenMerge(merge_plain)


class AddsPartsUnweighed(WithKernels):
    def attention_of(self, attention):
        return SplitThenMerge(lambda largest, totals, accs: accs.sum(1) / totals.sum(1, keepdim=True))


class NewTokenUnseen(WithKernels):
    """Gives the new token a value of zeros."""

    def attention_of(self, attention):
        def attend(query, key, value, *others):
            attention(query, key, value, *others)
            return attention(
                query, key, torch.zeros_like(value), *(t.clone() for t in others[:-1]), others[-1]
            )

        return attend


class StatisticsOfTheResidual(WithKernels):
    def kernels_of(self, kernels):
        def linear_residual(x, weight, bias, residual):
            out, _ = kernels.linear_residual(x, weight, bias, residual)
            return out, row_statistics(residual, residual.shape[1])

        return kernels._replace(linear_residual=linear_residual)


class ForgetsTheBias(WithKernels):
    def kernels_of(self, kernels):
        def linear_residual(x, weight, bias, residual):
            return kernels.linear_residual(x, weight, torch.zeros_like(bias) + 1, residual)

        return kernels._replace(linear_residual=linear_residual)


class OldResidual(FusedDeviceStep):
    """Adds the MLP to the layer's input, and not to what attention made of it."""

    def layer(self, layer_idx, x, statistics):
        layer, kernels = self.layers[layer_idx], self.kernels
        attended = self.attend(layer_idx, kernels.norm_linear(x, statistics, layer.qkv))
        between, statistics = kernels.linear_residual(attended, *layer.attention_out, x)
        inner = kernels.norm_linear(between, statistics, layer.mlp_in, gelu=True)
        return kernels.linear_residual(inner, *layer.mlp_out, x)


class NotMine(TenKernelStep):
    """The reader's step, right but for what `with_mine` returns, which goes nowhere."""

    def __init__(self, slots, network, attention, kernels):
        with_mine(attention, kernels, None, None)
        super().__init__(slots, network, attention, kernels)

    layer = FusedDeviceStep.layer


class Unwritten(InOneLoop):
    def mlp(self, layer, x, statistics):
        not_attempted()


TOKENS = r"a step makes the plain step's tokens: row \d of \d \(request \d+\) is token \d+, expected"
SOFTMAX = (
    r"attention is one softmax over all of a request's tokens: in a step whose requests have "
    r"\[3, 9, 20, 50\] tokens in the cache, request {} of 4, .* The parts of all programs count"
)
WRONG = {
    AddsPartsUnweighed: SOFTMAX.format(r"\d"),
    ForgetsAPart: SOFTMAX.format(3),
    NewTokenUnseen: SOFTMAX.format(0),
    StatisticsOfTheResidual: r"linear_residual tells the mean and the deviation .*row 0 of 4, value [01] of",
    ForgetsTheBias: r"linear_residual is residual \+ linear\(x\): in a step, for 32 inputs, row 0 of 4",
    OldResidual: r"a layer is attention and MLP, .*: layer 0, request 0 of 4, .* as it came into that half",
    Separate: r"a step is few kernels: 40 for 2 layers, at most 15, .* Launched were: linear 9, add 6, ",
    PaddedVocabulary: TOKENS,
    DoesNotAdvance: r"moves its requests on .*: context_lens\[\d\] \(request \d+\) is \d+ after",
    NotMine: r"the step runs the kernels of steps 2 and 3: norm_linear: not yours, merge: not yours\. ",
    Unwritten: r"^layer_kernels: not attempted yet\.$",
}
RIGHT = (InOneLoop, Merges)


test_wrong_parts, test_right_parts = gate_tests("09", "layer_kernels", WRONG, RIGHT)
