"""Lesson 16's gates: the hints' functions with one likely mistake each are refused, with its sentence."""

import pytest
from gate_tests import mistake_tests

from labkit.learn.lesson_16 import gate
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "16_eight_bit_cache.ipynb"
QUANTIZE, ATTEND, BOUND = range(3)
MISTAKES = [
    (QUANTIZE, ".clamp(min=2.0**-126)", "", "keep scales above 0"),
    (QUANTIZE, ".amax(dim=-1)", ".amax().expand(heads.shape[:-1])", "of its own head at most"),
    (QUANTIZE, "amax(dim=-1)", "amax(dim=-1, keepdim=True)", "scales has shape"),
    (QUANTIZE, "heads.abs()", "heads.nan_to_num().abs()", "reads as NaN, and no other does"),
    (ATTEND, "(scores * key_scales)", "scores", "keys belong inside of the softmax"),
    (ATTEND, "* value_scales", "* value_scales\n    weights /= weights.sum(-1, keepdim=True)", "add up to 1"),
    (BOUND, "abs().sum(dim=-1)", "abs().amax(dim=-1)", "rounded so that all errors add up"),
    (QUANTIZE, "(heads.abs().amax(dim=-1) / 127).clamp(min=2.0**-126)",
     "heads.abs().amax(dim=-1).clamp(min=2.0**-126) / 127", "no scale is below 2.0**-126"),
    (ATTEND, "(scores * key_scales).softmax(dim=-1) * value_scales",
     "(scores * value_scales).softmax(dim=-1) * key_scales", "a score is multiplied by its key's scale"),
    (BOUND, "largest / 2 + ", "", "no error is larger than the bound"),
    (BOUND, "key_scales.amax(dim=-1) / 2", "key_scales.amax(dim=-1)", "and not much more"),
    (QUANTIZE, "2.0**-126", "1e-8", "is -4.365e-31 and reads as -0"),
    (QUANTIZE, "amax(dim=-1)", "amax(dim=2)", "raised IndexError"),
    (BOUND, "return largest", "return float('nan') * largest", "the bound says nan"),
    (BOUND, "value_scales.amax(dim=-1)", "value_scales.mean(dim=-1)", "no error is larger than the bound"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)


def test_a_quantizer_that_forgets_scales_between_tokens_changes_the_engines_text():
    with pytest.raises(gate.BrokenContract, match="the text is rung 16's"):
        gate.right_text(gate.EightBitAttention(gate.first_scale, gate.attention_in_float64))


def test_attention_is_not_blamed_for_numbers_that_step_1_makes():
    assert gate.check_attend(gate.attention_in_float64, gate.by_head).ok
    assert gate.check_attend(gate.attention_in_float64, gate.first_scale).before == "step 1"


def test_the_draws_bound_is_a_bound_and_the_packages_quantizer_passes():
    assert gate.check_bound(gate.bound).ok and gate.check_quantize(gate.by_head).ok
    for wrong in (gate.one_scale, gate.first_scale, gate.four_bits):
        assert not gate.check_quantize(wrong).ok
