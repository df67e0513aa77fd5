"""tune: finds this GPU's fastest tiles for a model's fused products, and keeps them for later engines.

The tiles go to a file in your cache directory, one for each GPU, torch and triton. Later searches add to it,
and deleting it brings back labkit's own tiles. A product that the search has no time for keeps its tile.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import BATCH, COUNT, ModelFlags
from labkit.bench.commands.flags import flag
from labkit.bench.commands.targets import record_if_asked, try_writing
from labkit.bench.tile_time import GpuTileBench, cut_products_of, products_of
from labkit.bench.tiles import Case, Found, Product, rows_up_to, search_tiles
from labkit.engine.device import default_dtype, pick_device
from labkit.errors import OptionError
from labkit.kernels import triton_status
from labkit.kernels.tile_tables import TimedTile, keep_table, name_of, table_path, tiles_for
from labkit.kernels.tiles import MeasuredTiles, chosen_tile, tile_with_room
from labkit.model import Network, load_model
from labkit.model.checkpoint import network_without_weights
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.results.tiles import TunedTile, tiles_table


@dataclass
class Settings(ModelFlags):
    """The command's flags."""

    seconds: int = flag(60, "the search lasts this many seconds", COUNT)
    max_batch_size: int = flag(64, "engines to come decode at most this many requests together", BATCH)
    ranks: int = flag(1, "the model is cut among this many GPUs, as labkit.parallel does", COUNT)


def run(args: Settings) -> None:
    """Search the tiles of the model's products, print them, keep them, and write a record if asked for.

    Raises OptionError where no kernel is compiled or no file can be written, and RecordError if the file that
    there is is damaged.
    """
    device = pick_device(args.device)
    if device.type != "cuda" or triton_status().mode != "native":
        why = triton_status().reason if device.type == "cuda" else "this command has no use on the CPU"
        raise OptionError(f"tiles are measured on a CUDA GPU with Triton: {why}")
    path, dtype = table_target(device), default_dtype(device)
    measured = tiles_for(device, dtype, can_hold=True)
    network = shapes_of(args.model)
    products = products_of(network) if args.ranks == 1 else cut_products_of(network, args.ranks)
    bench = GpuTileBench(device, dtype)
    cases = [
        case_of(product, rows, measured, bench)
        for rows in rows_up_to(args.max_batch_size)
        for product in products
    ]
    with tqdm(unit=" tiles", leave=False, disable=None) as bar:
        found = search_tiles(cases, bench, args.seconds, progress=bar.update)
    print_found(cases, found)
    if not found:
        return
    keep_table(path, [timed_tile(each, dtype) for each in found])
    print(f"Kept: {path}. An engine takes them when it is made, and `engine.stats().tiles` says so.")
    record_if_asked(args, "tiles", device, [sample_of(each) for each in found], dtype=name_of(dtype))


def shapes_of(name: str) -> Network:
    """A model's network; one of a published size and random weights without them."""
    config = RANDOM_CONFIGS.get(name.removeprefix("random:")) if name.startswith("random:") else None
    return load_model(name).network if config is None else network_without_weights(config)


def table_target(device: torch.device) -> Path:
    """The file for a GPU's tiles. Writing to it is tried, and leaves nothing behind; raises OptionError if it
    fails, before anything was measured."""
    path = table_path(device)
    try:
        try_writing(str(path), path)
    except argparse.ArgumentTypeError as error:
        raise OptionError(f"{error}. Let XDG_CACHE_HOME name a folder that can be written") from None
    return path


def case_of(product: Product, rows: int, measured: MeasuredTiles, bench: GpuTileBench) -> Case:
    """A product with so many rows, and the tile that an engine takes for it now."""
    today = chosen_tile(rows, product.N, product.K, measured, bench.element_size, can_split=product.can_split)
    return Case(product, rows, tile_with_room(today, bench.element_size, bench.room))


def print_found(cases: list[Case], found: list[Found]) -> None:
    """Print what was found, and what there was no time for."""
    if found:
        print(tiles_table(tuple(sample_of(each) for each in found)).to_string())
    if late := [case for case in cases if case not in {each.case for each in found}]:
        names = "; ".join(f"{case.product.name} at {case.rows} rows" for case in late)
        print(f"Not measured in time, so today's tile stays: {names}. Give it more --seconds.")


def sample_of(found: Found) -> TunedTile:
    """What was found as a record holds it."""
    product, rows, today = found.case
    return TunedTile(
        product.name,
        product.N,
        product.K,
        rows,
        tuple(map(int, today)),
        found.today_seconds,
        tuple(map(int, found.tile)),
        found.seconds,
        found.num_tried,
    )


def timed_tile(found: Found, dtype: torch.dtype) -> TimedTile:
    """What was found as the user's file holds it."""
    product, rows = found.case[:2]
    return TimedTile(product.N, product.K, name_of(dtype), rows, found.tile, 1e6 * median(found.seconds))
