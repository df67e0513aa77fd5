"""The bench that compiles, checks and times tiles, here in Triton's interpreter."""

import pytest
import torch
from triton_marks import needs_triton

from labkit.bench import tile_time
from labkit.bench.tile_time import GpuTileBench, cut_products_of, products_of
from labkit.bench.tiles import Case, Product, TileBench
from labkit.kernels import triton_status
from labkit.kernels.tiles import Tile
from labkit.model import load_model
from labkit.model.checkpoint import network_without_weights
from labkit.model.random_configs import RANDOM_CONFIGS

CPU = torch.device("cpu")
TILE, TODAY = Tile(16, 16, 32, 1, 4, 2), Tile(16, 32, 16, 1, 4, 2)
NORM = Case(Product("behind a norm", 48, 32, False), 16, TODAY)
RESIDUAL = Case(Product("with a residual", 32, 64, True), 16, TODAY)
GATED = Case(Product("through a gate", 48, 32, False, is_rms=True, is_gated=True), 16, TODAY)
MINUTE = 60.0
needs_interpreter = pytest.mark.skipif(
    triton_status().mode != "interpreter", reason="kernels are compiled here, or there are none"
)


@pytest.fixture
def bench(monkeypatch) -> TileBench:
    """One thread: the interpreter is not made for several."""
    monkeypatch.setattr(tile_time, "num_copies", lambda weight: 3)
    monkeypatch.setattr(tile_time, "MOST_THREADS", 1)
    monkeypatch.setattr(tile_time, "WIDTH", 16)
    return GpuTileBench(CPU, torch.float32)


def test_a_model_has_four_products_two_of_which_may_be_split(tiny):
    E = tiny.config.hidden_size
    assert [tuple(product) for product in products_of(tiny.network)] == [
        ("queries, keys, values", 3 * E, E, False, False, False),
        ("attention's projection", E, E, True, False, False),
        ("MLP up", 4 * E, E, False, False, False),
        ("MLP down", E, 4 * E, True, False, False),
    ]


def test_products_of_a_llama_know_its_norms_and_its_gate():
    model = load_model("random:small-llama")
    config = model.config
    E, D, width = config.hidden_size, config.head_dim, config.intermediate_size
    rows = (config.num_heads + 2 * config.num_kv_heads) * D
    assert [tuple(product[1:]) for product in products_of(model.network)] == [
        (rows, E, False, True, False),
        (E, config.num_heads * D, True, True, False),
        (2 * width, E, False, True, True),
        (E, width, True, True, False),
    ]


def test_ranks_with_other_numbers_of_heads_have_other_products():
    """GPT-2 XL's 25 heads: 13 and 12 of them."""
    network = network_without_weights(RANDOM_CONFIGS["gpt2-xl"])
    assert [(product.N, product.K, product.can_split) for product in cut_products_of(network, 2)] == [
        (3 * 13 * 64, 1600, False),
        (3200, 1600, False),
        (3 * 12 * 64, 1600, False),
    ]


@pytest.mark.slow
@needs_interpreter
def test_a_tile_that_computes_what_the_plain_twin_does_is_right_and_timed(bench):
    tries = [(NORM, TILE), (GATED, TILE), (RESIDUAL, TILE), (RESIDUAL, TILE._replace(split_k=2))]
    assert bench.compile(tries, MINUTE) == tries
    for case, tile in tries:
        assert bench.is_right(case, tile)
        assert 0 < bench.measure(case, tile)() < 60


@needs_interpreter
@pytest.mark.parametrize("case", [NORM, RESIDUAL], ids=["norm", "residual"])
def test_another_result_is_not_right(bench, case, monkeypatch):
    for name in ("norm_linear_triton", "linear_residual_triton"):
        kernel = getattr(tile_time, name)
        monkeypatch.setattr(
            tile_time, name, lambda *args, kernel=kernel, **options: off(kernel(*args, **options))
        )
    assert not bench.is_right(case, TILE)


def off(result):
    """A result with one number that is another."""
    (result if isinstance(result, torch.Tensor) else result[0])[3, 5] += 0.1
    return result


@needs_interpreter
def test_what_cannot_be_launched_or_is_late_is_left_out(bench):
    split = NORM, TILE._replace(split_k=2)
    assert bench.compile([split, (NORM, TILE)], MINUTE) == [(NORM, TILE)]
    with pytest.raises(ValueError, match="is not split"):
        bench.is_right(*split)
    assert bench.compile([(NORM, TILE)] * 5, -1) in ([], [(NORM, TILE)])


@needs_triton
@pytest.mark.cuda
def test_on_a_gpu_weights_are_more_than_its_cache_holds():
    weight = torch.empty(3072, 768, dtype=torch.float16, device="cuda")
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    copies = tile_time.num_copies(weight)
    assert copies == tile_time.MOST_COPIES or copies * weight.nbytes > 2 * cached
