"""What a join stores, and what a chunk reads again."""

import pytest

from labkit import LADDER, InferenceEngine
from labkit.learn.lesson_13 import cost, served


def test_a_join_stores_once_per_layer_when_it_is_packed():
    model = served.quick_model()
    asked = [([1] * n, 2) for n in (5, 100, 70)]
    stores = {}
    for number in ("12", "13"):
        engine = InferenceEngine(model, LADDER[number].options, device="cpu", cache=served.NO_PREFIXES)
        stores[number] = cost.num_stores(engine, asked)
    assert stores["13"] == model.config.num_layers == 1
    assert stores["12"] == 2 * (1 + 2 + 2)  # keys and values, per block


def test_a_chunk_reads_all_weights_of_gpt2():
    sizes = cost.weight_megabytes((16, 1024), 1024)
    assert [count for count, _ in sizes.values()] == [64, 1]
    assert sizes[16][1] == pytest.approx(64 * sizes[1024][1]) == pytest.approx(64 * 0.2413, rel=1e-3)
