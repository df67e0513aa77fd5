"""Lesson 09: a layer's kernels, small engines, where tokens part, and the package's copies."""

from dataclasses import replace

import pytest
import torch
from helpers import make_engine
from torch import Tensor

from labkit import LADDER, kernels, lab, watch
from labkit.engine.step.fused import PLAIN, VOCABULARY_MULTIPLE, FusedDeviceStep
from labkit.kernels import triton_status
from labkit.learn.lesson_09 import fused_layer
from labkit.learn.lesson_09.fused_layer import small_engine
from labkit.learn.lesson_09.steps import with_mine
from labkit.watch.operators import tensors_of

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]
SEPARATE, FUSED = LADDER["08"].options, LADDER["09"].options


class Mine(FusedDeviceStep):
    def __init__(self, slots, network, attention, kernels):
        super().__init__(slots, network, *with_mine(attention, kernels, None, None))


def test_logits_of_both_rungs_are_far_closer_than_their_tokens():
    engines = [make_engine(options=options) for options in (SEPARATE, FUSED)]
    assert fused_layer.smallest_logit_gap(engines, PROMPTS) > 100


def test_a_parting_is_where_tokens_first_differ():
    model = small_engine(SEPARATE).model
    (logits,) = model.network.prefill(torch.tensor([[1, 2, 3, 7]]), torch.tensor([4])).last_logits
    best, second = logits.topk(2)[1].tolist()
    found = fused_layer.partings(
        model, [[1, 2, 3], [4]], [[7, best, 5], [1, 2]], [[7, second, 6], [1, 2]], torch.float16
    )
    ((at, gap, spacing),) = found.to_numpy().tolist()
    assert at == 1 and gap == pytest.approx(float(logits[best] - logits[second]))
    as_half = logits[best].half()
    assert spacing == float(as_half.abs().nextafter(torch.tensor(torch.inf).half()) - as_half.abs())


@pytest.mark.parametrize("engine", [make_engine, small_engine], ids=["even", "odd vocabulary"])
def test_copied_bytes_are_those_of_a_live_step(engine):
    engine = engine(options=FUSED)
    step, gpt2 = watch.device_step_of(engine), engine.model.network
    own = {p.untyped_storage().data_ptr() for p in gpt2.parameters()}
    held = tensors_of(list(vars(step).values()))
    copies = [t for t in held if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in own]
    assert sum(fused_layer.copied_bytes(engine.model.config, itemsize=4).values()) == sum(
        t.nbytes for t in copies
    )


def test_alignment():
    assert [fused_layer.alignment(2 * 50257, row) for row in range(5)] == [128, 2, 4, 2, 8]
    padded = -(-50257 // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    assert {fused_layer.alignment(2 * padded, row) for row in range(20)} == {128}


def test_without_triton_the_twins_stand_for_the_fused_kernels(monkeypatch):
    monkeypatch.setattr(fused_layer, "triton_status", lambda: replace(triton_status(), mode="off"))
    assert fused_layer.fused_kernels() is PLAIN


def test_an_excerpt_is_from_one_line_to_another():
    lines = fused_layer.excerpt(kernels.fused_linear._rows_first, "if BLOCK_M", "acc = tl.trans").splitlines()
    assert lines == ["if BLOCK_M < 64:", "    acc = tl.trans(acc)"]


def test_whose_kernels_a_step_has():
    here = lab.start("09")
    assert fused_layer.whose_kernels(here.build()) == "norm_linear: not yours, merge: not yours"
    assert fused_layer.whose_kernels(here.build(layer_kernels=Mine)) == "norm_linear: yours, merge: yours"
