"""The search of `labkit.bench.tiles` on a GPU, and the command that keeps what it finds."""

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from labkit.bench.flags import BATCH, ModelFlags, flag
from labkit.bench.limit import launcher, timed
from labkit.bench.record import try_writing
from labkit.bench.tiles import Case, Measure, Product, rows_up_to, search_tiles
from labkit.engine.device import current_device, default_dtype, pick_device
from labkit.errors import OptionError
from labkit.kernels import (
    NormLinear,
    RowStatistics,
    linear_residual_plain,
    linear_residual_triton,
    norm_linear_plain,
    norm_linear_triton,
    triton_status,
)
from labkit.kernels.fused_linear import mean_and_rstd, row_statistics
from labkit.kernels.linear_residual import make_split_k_workspace
from labkit.kernels.ring_linear import has_ring_kernels
from labkit.kernels.tile_tables import TimedTile, keep_table, name_of, table_path, tiles_for
from labkit.kernels.tiles import ROWS, MeasuredTiles, Tile, chosen_tile, tile_with_room
from labkit.kernels.triton_runtime import check_triton, shared_memory_of
from labkit.model import Network, load_model
from labkit.model.checkpoint import network_without_weights
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.parallel.shards import head_groups
from labkit.results.kernels import TunedTile, tiles_table

WIDTH = 64  # columns of a part of the statistics that a product behind a LayerNorm reads
MOST_COPIES, MOST_THREADS = 64, 16
REPLAYS = 5
TOLERANCE = {torch.float16: 2**-7, torch.bfloat16: 2**-4, torch.float32: 1e-4}  # the twins round elsewhere
EPS = 1e-5


def products_of(network: Network) -> list[Product]:
    """The four matrix products of a layer. Raises OptionError for a network that has no fused form."""
    weights = network.decoder_weights()
    layer, is_rms = weights.layers[0], weights.final_norm.bias is None
    named = {
        "queries, keys, values": (layer.qkv, False),
        "attention's projection": (layer.attention_out, True),
        "MLP up": (layer.mlp_in, False),
        "MLP down": (layer.mlp_out, True),
    }
    return [
        Product(
            name,
            *linear.weight.shape,
            can_split,
            is_rms,
            is_gated=weights.is_gated and linear is layer.mlp_in,
        )
        for name, (linear, can_split) in named.items()
    ]


def cut_products_of(network: Network, size: int) -> list[Product]:
    """The products behind a norm of a model that is cut among so many processes, which may have different
    numbers of heads. The other two, whose results are summed, are PyTorch's."""
    config, (qkv, _, mlp_in, _) = network.config, products_of(network)
    groups = head_groups(config.num_heads, config.num_kv_heads, size)
    products = []
    for rank in range(size):
        mine, inner = (len(torch.arange(n).chunk(size)[rank]) for n in (groups, mlp_in.N >> mlp_in.is_gated))
        heads = mine * (config.num_heads // groups + 2)
        products.append(qkv._replace(name=f"{qkv.name}, cut", N=heads * config.head_dim))
        products.append(mlp_in._replace(name=f"{mlp_in.name}, cut", N=inner << mlp_in.is_gated))
    return list(dict.fromkeys(products))


@dataclass(frozen=True)
class Inputs:
    """Random numbers of a product's shape: inputs for the most rows, and weights as of so many layers."""

    product: Product
    x: Tensor  # [ROWS[-1], K]
    residual: Tensor  # [ROWS[-1], N]
    bias: Tensor | None  # [N]
    statistics: RowStatistics
    layers: tuple[NormLinear, ...]

    def calls(self, rows: int, norm_linear: Callable, linear_residual: Callable) -> list[Callable]:
        """A call for each copy of the weights, of the kernel that the product needs."""
        x = self.x[:rows]
        if not self.product.can_split:
            statistics = self.statistics._replace(parts=self.statistics.parts[:rows])
            return [partial(norm_linear, x, statistics, layer) for layer in self.layers]
        residual = self.residual[:rows]
        return [partial(linear_residual, x, layer.weight, self.bias, residual) for layer in self.layers]


def make_inputs(product: Product, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Inputs on the device, with copies of the weights that are together larger than its cache."""
    _, N, K, _, is_rms, is_gated = product

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    weight = (randn(N, K) * K**-0.5).to(dtype)
    sums, bias = (None, None) if is_rms else (weight.float().sum(1), randn(N))
    layer = NormLinear(weight, sums, bias, EPS, is_gated)
    x, residual = randn(ROWS[-1], K).to(dtype), randn(ROWS[-1], N).to(dtype)
    copies = [layer._replace(weight=weight.clone()) for _ in range(num_copies(weight))]
    bias = None if bias is None else bias.to(dtype)
    return Inputs(product, x, residual, bias, row_statistics(x, WIDTH), tuple(copies))


def num_copies(weight: Tensor) -> int:
    """Of a weight, so many that those of a whole decode step go through the cache between two uses of one."""
    cached = torch.cuda.get_device_properties(weight.device).L2_cache_size
    return min(MOST_COPIES, 2 * cached // weight.nbytes + 2)


class GpuTileBench:
    """Compiles, checks and times tiles on a GPU.

    room: bytes of shared memory that a program can have. element_size: bytes of an input. has_rings: whether
    a TMA can bring the inputs.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.room, self.element_size = shared_memory_of(device), dtype.itemsize
        self.has_rings = has_ring_kernels(device) and dtype.itemsize == 2
        self._workspace = make_split_k_workspace(device)
        self._inputs = cache(partial(make_inputs, device=device, dtype=dtype))
        check_triton()  # which sets itself up in its first launch, and not for several threads at once
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))

    def compile(self, tries: Sequence[tuple[Case, Tile]], seconds: float) -> list[tuple[Case, Tile]]:
        """Launch each once, from several threads: compiling is most of it. What is not done within
        so many seconds is left out; what has begun is not stopped."""
        for case, _ in tries:
            self._inputs(case.product)  # made here: threads would each make their own
        futures = [self._threads.submit(self._launch, *each) for each in tries]
        done, late = wait(futures, timeout=max(0.0, seconds))
        for future in late:
            future.cancel()
        return [
            each
            for each, future in zip(tries, futures, strict=True)
            if future in done and future.exception() is None
        ]

    @torch.inference_mode()
    def is_right(self, case: Case, tile: Tile) -> bool:
        """Whether a launch computes what the plain twin does, up to rounding. Raises what a launch raises."""
        made = self._launch(case, tile)
        plain = self._inputs(case.product).calls(case.rows, norm_linear_plain, linear_residual_plain)
        expected = plain[0]()
        if not case.product.can_split:
            return self._is_close(made, expected)
        (out, statistics), (out_expected, _) = made, expected
        whole = row_statistics(out, out.shape[1])
        moments = [torch.stack(mean_and_rstd(each, out.shape[1], EPS)) for each in (statistics, whole)]
        return self._is_close(out, out_expected) and self._is_close(*moments)

    @torch.inference_mode()
    def measure(self, case: Case, tile: Tile) -> Measure:
        """A function that times launches with all copies of the weights in turn, from a CUDA graph."""
        calls = self._calls(case, tile)
        launch = launcher(calls, self.device)
        launch()
        return lambda: median(timed(launch, self.device) for _ in range(REPLAYS)) / len(calls)

    @torch.inference_mode()
    def _launch(self, case: Case, tile: Tile) -> Any:
        with current_device(self.device):  # each thread has its own
            return self._calls(case, tile)[0]()

    def _calls(self, case: Case, tile: Tile) -> list[Callable]:
        return self._inputs(case.product).calls(
            case.rows,
            partial(norm_linear_triton, tile=tile),
            partial(linear_residual_triton, tile=tile, workspace=self._workspace),
        )

    def _is_close(self, made: Tensor, expected: Tensor) -> bool:
        tolerance = TOLERANCE[self.dtype]
        return torch.allclose(made.float(), expected.float(), rtol=tolerance, atol=tolerance)


def case_of(product: Product, rows: int, measured: MeasuredTiles, bench: GpuTileBench) -> Case:
    """A product with so many rows, and the tile that an engine takes for it now."""
    today = chosen_tile(rows, product.N, product.K, measured, bench.element_size, can_split=product.can_split)
    return Case(product, rows, tile_with_room(today, bench.element_size, bench.room))


def timed_tile(found: TunedTile, dtype: torch.dtype) -> TimedTile:
    *blocks, ring = found.tile
    return TimedTile(found.N, found.K, name_of(dtype), found.rows, Tile(*blocks, bool(ring)), found.us)


@dataclass
class Tune(ModelFlags):
    """Find this GPU's fastest tiles for a model's fused products, and keep them for later engines.

    The tiles go to a file in your cache directory, one for each GPU, torch and triton. Later searches add to
    it, and deleting it brings back labkit's own tiles. A product that the search has no time for keeps its
    tile.
    """

    kind = "tiles"

    seconds: int = flag(60, "the search lasts this many seconds")
    max_batch_size: int = flag(64, "engines to come decode at most this many requests together", BATCH)
    ranks: int = flag(1, "the model is cut among this many GPUs, as labkit.parallel does")

    def run(self) -> None:
        """Raises OptionError where no kernel is compiled or no file can be written, and RecordError for a
        damaged file."""
        device = pick_device(self.device)
        if device.type != "cuda" or triton_status().mode != "native":
            why = triton_status().reason if device.type == "cuda" else "this command has no use on the CPU"
            raise OptionError(f"tiles are measured on a CUDA GPU with Triton: {why}")
        path, dtype = table_path(device), default_dtype(device)
        try:
            try_writing(path)
        except argparse.ArgumentTypeError as error:
            raise OptionError(f"{error}. Let XDG_CACHE_HOME name a folder that can be written") from None
        measured = tiles_for(device, dtype, can_hold=True)
        kind, _, size = self.model.rpartition(":")
        config = RANDOM_CONFIGS.get(size) if kind == "random" else None
        network = load_model(self.model).network if config is None else network_without_weights(config)
        products = products_of(network) if self.ranks == 1 else cut_products_of(network, self.ranks)
        bench = GpuTileBench(device, dtype)
        cases = [
            case_of(product, rows, measured, bench)
            for rows in rows_up_to(self.max_batch_size)
            for product in products
        ]
        with tqdm(unit=" tiles", leave=False, disable=None) as bar:
            found = search_tiles(cases, bench, self.seconds, progress=bar.update)
        if found:
            print(tiles_table(found).to_string())
        in_time = {(each.N, each.K, each.rows) for each in found}
        if late := [case for case in cases if (case.product.N, case.product.K, case.rows) not in in_time]:
            names = "; ".join(f"{case.product.name} at {case.rows} rows" for case in late)
            print(f"Not measured in time, so today's tile stays: {names}. Give it more --seconds.")
        if not found:
            return
        keep_table(path, [timed_tile(each, dtype) for each in found])
        print(f"Kept: {path}. An engine takes them when it is made, and `engine.stats().tiles` counts them.")
        self.record_if_asked(found, dtype=name_of(dtype))
