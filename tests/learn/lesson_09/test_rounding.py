"""Lesson 09: LayerNorm's numbers, rounded in several ways."""

import torch

from labkit import LADDER
from labkit.learn.lesson_09 import rounding
from labkit.learn.lesson_09.fused_layer import small_engine


def test_the_variance_is_lost_only_in_the_well_known_formula():
    errors = rounding.variance_errors([0.01, 4096])
    formula, distances, parts = (errors[name] for name in errors)
    assert formula[0.01] < 1e-5 < 0.1 < formula[4096]
    assert max(distances.max(), parts.max()) < 1e-3


def test_folding_is_no_worse_unless_its_sums_are_of_other_weights():
    errors = rounding.fold_errors([0.01, 100])
    careless, usual, folded = (errors[name] for name in errors)
    assert (folded < 1.1 * usual).all()
    assert careless[100] > 10 * usual[100]


def test_the_largest_mean_is_seen_before_every_layer_norm():
    engine = small_engine(LADDER["08"].options)
    ids = [1, 2, 3, 4]
    usual = rounding.largest_mean(engine.model, ids)
    with torch.no_grad():
        engine.model.network.wte.weight.add_(1000.0)
    assert usual < 10 < rounding.largest_mean(engine.model, ids)
    assert not engine.model.network.h[0].ln_1._forward_pre_hooks
