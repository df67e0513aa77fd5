"""Lesson 09: a step of ten kernels per layer, and one whose merge forgets a part."""

import pytest
import torch

from labkit import LADDER, lab, watch
from labkit.engine import InferenceEngine, SamplingParams
from labkit.learn.lesson_09 import splits
from labkit.learn.lesson_09.steps import ForgetsAPart, TenKernelStep

pytestmark = pytest.mark.slow
PARAMS = SamplingParams(max_new_tokens=40, stop_on_eos=False)


def tokens(engine):
    (done,) = engine.generate([[1, 2, 3]], PARAMS)
    return done.token_ids


def test_a_step_of_ten_kernels_makes_the_rung_below_s_tokens():
    here = lab.start("09")
    ten = here.build(layer_kernels=TenKernelStep, dtype=torch.float32)
    below = InferenceEngine(here.trained_model(), LADDER["08"].options, device="cpu", dtype=torch.float32)
    assert tokens(ten) == tokens(below)
    made, expected = (watch.layer_of(watch.log_step(e, [[1, 2, 3]]).launches) for e in (ten, below))
    assert made == expected and len(made) == 10


def test_a_forgotten_part_shows_once_it_has_a_token():
    here = lab.start("09")
    forgetful = here.build(layer_kernels=ForgetsAPart, dtype=torch.float32)
    right, wrong = tokens(here.build(dtype=torch.float32)), tokens(forgetful)
    first = next(i for i, pair in enumerate(zip(right, wrong, strict=True)) if pair[0] != pair[1])
    in_cache = 3 + first - 1  # when that token was made
    assert (splits.SPLITS - 1) * splits.PIECE < in_cache < 40
    attention = watch.log_step(forgetful, [[1, 2, 3]]).launches[2]
    assert (attention.name, attention.kernels) == ("attention", 2)
