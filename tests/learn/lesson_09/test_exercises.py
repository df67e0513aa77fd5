"""Lesson 09: the solutions of its exercises say what the package does."""

import torch

from labkit import kernels
from labkit.learn.lesson_09.exercises import FOLD


def test_the_engine_folds_alike():
    """Where nothing is rounded."""
    given = {
        "norm_weight": [2.0, 0.5],
        "norm_bias": [1.0, -1.0],
        "weight": [[1.0, 4.0], [0.5, 8.0]],
        "bias": [3.0, 0.0],
    }
    layer = kernels.fold_layer_norm(eps=1e-5, **{name: torch.tensor(t) for name, t in given.items()})
    made = (layer.weight.tolist(), layer.column_sums.tolist(), layer.bias.tolist())
    assert made == FOLD.solution(**given, unit=2**-10)
