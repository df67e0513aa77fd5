"""Lesson 09's gate: fused steps pass, and plausible wrong ones are refused by what they break."""

import re

import pytest
import torch
import torch.nn.functional as F

from labkit import lab
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import FusedDeviceStep
from labkit.learn import not_attempted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("09")


class InOneLoop(FusedDeviceStep):
    """The step as a loop over layers whose pieces can be got wrong one by one."""

    def _logits(self, slot_mapping):
        slots = self.slots
        x, statistics = self.kernels.embed(
            slot_mapping, slots.last_token_ids, slots.context_lens, *self._tables
        )
        for layer_idx, layer in enumerate(self._layers):
            attended = self.attend(layer_idx, self.kernels.norm_linear(x, statistics, layer.qkv))
            x, statistics = self.behind_attention(attended, layer, x, statistics)
            x, statistics = self.mlp(layer, x, statistics)
        return self.cut(F.linear(self.normed(x), self._head))

    def attend(self, layer_idx, qkv):
        query, key, value = qkv.view(len(qkv), 3, self._num_heads, -1).unbind(1)
        return self.attention.attend_heads(layer_idx, query, key, value).flatten(1)

    def behind_attention(self, attended, layer, x, statistics):
        return self.kernels.linear_residual(attended, *layer.attention_out, x)

    def mlp(self, layer, x, statistics):
        inner = self.kernels.norm_linear(x, statistics, layer.mlp_in, gelu=True)
        return self.kernels.linear_residual(inner, *layer.mlp_out, x)

    def normed(self, x):
        return F.layer_norm(x, x.shape[1:], *self._final_norm)

    def cut(self, logits):
        return logits[:, : self._vocab_size]


class Separate(FusedDeviceStep):
    """PyTorch's operators, as on the rung below."""

    __call__ = DeviceStep.__call__


class NormByItself(InOneLoop):
    def mlp(self, layer, x, statistics):
        copied = x + 0  # one launch more per layer
        return super().mlp(layer, copied, statistics)


class WithoutGelu(InOneLoop):
    def mlp(self, layer, x, statistics):
        inner = self.kernels.norm_linear(x, statistics, layer.mlp_in)
        return self.kernels.linear_residual(inner, *layer.mlp_out, x)


class WithoutResidual(InOneLoop):
    def behind_attention(self, attended, layer, x, statistics):
        return self.kernels.linear_residual(attended, *layer.attention_out, torch.zeros_like(x))


class StatisticsOfBefore(InOneLoop):
    def behind_attention(self, attended, layer, x, statistics):
        return super().behind_attention(attended, layer, x, statistics)[0], statistics


class OrderOfKeyAndValue(InOneLoop):
    def attend(self, layer_idx, qkv):
        query, key, value = qkv.chunk(3, dim=1)
        return super().attend(layer_idx, torch.cat([query, value, key], dim=1))


class OneLayersCache(InOneLoop):
    def attend(self, layer_idx, qkv):
        return super().attend(0, qkv)


class WithoutFinalNorm(InOneLoop):
    def normed(self, x):
        return x


class PaddedVocabulary(InOneLoop):
    """Leaves the rows of zeros in the head's logits: among them are the likeliest."""

    def cut(self, logits):
        return logits


class AlwaysGreedy(InOneLoop):
    def __call__(self, batch_size, max_context_len, is_greedy):
        return super().__call__(batch_size, max_context_len, True)


class DoesNotAdvance(InOneLoop):
    def advance(self, token_ids, slot_mapping):
        return token_ids


class AllRows(InOneLoop):
    def __call__(self, batch_size, max_context_len, is_greedy):
        return super().__call__(len(self.slots.slot_mapping), max_context_len, is_greedy)


class ReadsBack(InOneLoop):
    """Makes a list of the tokens on the host."""

    def __call__(self, batch_size, max_context_len, is_greedy):
        return super().__call__(batch_size, max_context_len, is_greedy).tolist()


class Unwritten(InOneLoop):
    def mlp(self, layer, x, statistics):
        not_attempted()


class Misspelled(InOneLoop):
    def mlp(self, layer, x, statistics):
        return layer.mlp(x)


LEAVES = (
    r"a step writes a key and a value per request .*: {}_cache of layer {}, block \d+, place \d is not what"
)
TOKENS = r"a step makes the plain step's tokens: row \d of \d \(request \d+\) is token \d+, expected"
WRONG = {
    Separate: r"a step is few kernels: 40 for 2 layers, at most 15, .* Launched were: linear 9, add 6, ",
    NormByItself: r"a step is few kernels: 17 for 2 layers, at most 15, .* Launched were: .*add 2",
    WithoutGelu: LEAVES.format("k", 1),
    WithoutResidual: LEAVES.format("k", 1),
    StatisticsOfBefore: LEAVES.format("k", 1),
    OrderOfKeyAndValue: LEAVES.format("k", 0),
    OneLayersCache: LEAVES.format("k", 0),
    WithoutFinalNorm: TOKENS,
    PaddedVocabulary: TOKENS,
    AlwaysGreedy: r"a step m.*\(request \d+\) is .*expected",
    DoesNotAdvance: r"moves its requests on .*: context_lens\[\d\] \(request \d+\) is \d+ after",
    AllRows: r"a step makes a token per request: it made \(4,\) for a batch of \d",
    ReadsBack: r"a step makes a token per request: it made list for a batch of \d",
    Unwritten: r"^layer_kernels: not attempted yet\.$",
    Misspelled: r"raised AttributeError: .*mlp.*, at `return layer\.mlp\(x\)`",
}
RIGHT = (FusedDeviceStep, InOneLoop)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(layer_kernels=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(layer_kernels=part)
    assert report.ok and report.text.startswith("layer_kernels: right."), report
