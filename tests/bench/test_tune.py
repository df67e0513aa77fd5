"""`tune`: what it prints and keeps, with times that are made up; on a GPU for real."""

from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from bench_commands import bench
from triton_marks import needs_triton

from labkit import LADDER, InferenceEngine, SamplingParams, load_model, paths
from labkit.bench import flags, tune
from labkit.bench.limit import Bandwidth
from labkit.bench.tiles import Case, Product, TileBench, search_tiles
from labkit.bench.tune import cut_products_of, products_of
from labkit.engine import device as engine_device
from labkit.kernels import triton_status
from labkit.kernels.tile_tables import read_table
from labkit.kernels.tiles import Tile, tile_of
from labkit.kernels.triton_runtime import TritonStatus
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
E = 256  # of the shipped model


@pytest.fixture
def interpreted(monkeypatch) -> TileBench:
    """One thread: the interpreter is not made for several."""
    monkeypatch.setattr(tune, "num_copies", lambda weight: 3)
    monkeypatch.setattr(tune, "MOST_THREADS", 1)
    monkeypatch.setattr(tune, "WIDTH", 16)
    return tune.GpuTileBench(CPU, torch.float32)


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
def test_a_tile_that_computes_what_the_plain_twin_does_is_right_and_timed(interpreted):
    tries = [(NORM, TILE), (GATED, TILE), (RESIDUAL, TILE), (RESIDUAL, TILE._replace(split_k=2))]
    assert interpreted.compile(tries, MINUTE) == tries
    for case, tile in tries:
        assert interpreted.is_right(case, tile)
        assert 0 < interpreted.measure(case, tile)() < 60


@needs_interpreter
@pytest.mark.parametrize("case", [NORM, RESIDUAL], ids=["norm", "residual"])
def test_another_result_is_not_right(interpreted, case, monkeypatch):
    for name in ("norm_linear_triton", "linear_residual_triton"):
        kernel = getattr(tune, name)
        monkeypatch.setattr(tune, name, lambda *args, kernel=kernel, **options: off(kernel(*args, **options)))
    assert not interpreted.is_right(case, TILE)


def off(result):
    """A result with one number that is another."""
    (result if isinstance(result, torch.Tensor) else result[0])[3, 5] += 0.1
    return result


@needs_interpreter
def test_what_cannot_be_launched_or_is_late_is_left_out(interpreted):
    split = NORM, TILE._replace(split_k=2)
    assert interpreted.compile([split, (NORM, TILE)], MINUTE) == [(NORM, TILE)]
    with pytest.raises(ValueError, match="is not split"):
        interpreted.is_right(*split)
    assert interpreted.compile([(NORM, TILE)] * 5, -1) in ([], [(NORM, TILE)])


@needs_triton
@pytest.mark.cuda
def test_on_a_gpu_weights_are_more_than_its_cache_holds():
    weight = torch.empty(3072, 768, dtype=torch.float16, device="cuda")
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    copies = tune.num_copies(weight)
    assert copies == tune.MOST_COPIES or copies * weight.nbytes > 2 * cached


class FakeBench:
    """Each tile takes a microsecond; those with 6 stages half of that."""

    room, element_size, has_rings = 227 * 2**10, 2, False

    def __init__(self, device, dtype):
        self.dtype = dtype

    def compile(self, tries, seconds):
        return list(tries)

    def is_right(self, case, tile):
        return True

    def measure(self, case, tile):
        return lambda: 5e-7 if tile.num_stages == 6 else 1e-6


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """The command believes in a GPU; the value is the file that it keeps tiles in."""
    path = tmp_path / "cache" / "tiles.json"
    monkeypatch.setattr(tune, "pick_device", lambda name: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(tune, "triton_status", lambda: TritonStatus("native", "there is a CUDA GPU"))
    monkeypatch.setattr(tune, "table_path", lambda device: path)
    monkeypatch.setattr(tune, "tiles_for", lambda device, dtype, can_hold: {})
    monkeypatch.setattr(tune, "GpuTileBench", FakeBench)
    monkeypatch.setattr(flags, "measure_bandwidth", lambda device: Bandwidth(1e9, 1e9))
    return path


LINE = "tune --model data/tiny-gpt2 --device cpu"


def test_the_fastest_tiles_are_printed_kept_and_recorded(gpu, recorded, capsys):
    record = recorded(f"{LINE} --seconds 60 --max-batch-size 64")
    printed = capsys.readouterr().out
    assert f"Kept: {gpu}" in printed and "×2.00" in printed and "Not measured" not in printed
    table = read_table(gpu)
    products = {(3 * E, E), (E, E), (4 * E, E), (E, 4 * E)}
    assert {timed[:4] for timed in table} == {(*p, "float16", rows) for p in products for rows in (1, 16, 64)}
    assert {timed.tile.num_stages for timed in table} == {6}
    assert [timed.us for timed in table] == pytest.approx([0.5] * 12)
    assert record["kind"] == "tiles" and len(record["samples"]) == 12
    assert [sample["rows"] for sample in record["samples"]] == [64] * 4 + [1] * 4 + [16] * 4


def test_today_s_tile_is_what_an_engine_takes():
    product = tune.Product("one", 2304, 768, False)
    case = tune.case_of(product, 64, {}, FakeBench(CPU, torch.float16))
    assert case.today == tile_of(64, 2304, 768)
    mine = case.today._replace(num_stages=3)
    assert tune.case_of(product, 64, {(2304, 768): {64: mine}}, FakeBench(CPU, torch.float16)).today == mine


@needs_triton
@pytest.mark.cuda
def test_on_a_gpu_tiles_are_measured_and_an_engine_takes_them(monkeypatch, capsys, tmp_path):
    """Some thirty, by a clock that counts how often it is read; greedy tokens stay the same."""
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    model = load_model("data/tiny-gpt2")
    params = SamplingParams(24, stop_on_eos=False)

    def made() -> tuple[str, list[tuple[int, ...]]]:
        engine = InferenceEngine(model, LADDER["10"].options, device="cuda", dtype=torch.float32)
        return engine.stats().tiles, [done.token_ids for done in engine.generate(["ROMEO:", "O"], params)]

    monkeypatch.setattr(
        tune, "default_dtype", lambda device: torch.float32
    )  # in which no token is a close call
    monkeypatch.setattr(tune, "search_tiles", partial(search_tiles, clock=count(step=10).__next__))
    before = made()
    bench(monkeypatch, "tune --model data/tiny-gpt2 --device cuda --seconds 600 --max-batch-size 16")
    assert "Kept: " in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert read_table(path) and engine_device.default_dtype(torch.device("cuda")) == torch.float16
    after = made()
    assert before[0].startswith("measured for 0 of 4") and not after[0].startswith("measured for 0")
    assert after[1] == before[1]
