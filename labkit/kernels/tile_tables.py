"""Tiles that were measured on this machine's GPU, in a file of the user's: read, checked, and kept.

A file is for one GPU, torch and triton. An engine reads it once, when it is made; `python -m labkit.bench
tune` writes it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labkit import paths
from labkit.errors import RecordError
from labkit.json_file import read_json
from labkit.kernels.tiles import NOTHING_MEASURED, ROWS, MeasuredTiles, Tile, check_tile, has_workspace
from labkit.kernels.triton_runtime import triton, triton_status

MOST = Tile(256, 256, 512, 16, 16, 8)  # beyond it no kernel is compiled


def name_of(dtype: torch.dtype) -> str:
    """A dtype's name, "float16"."""
    return str(dtype).removeprefix("torch.")


DTYPES = {name_of(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32)}


class TimedTile(NamedTuple):
    """A tile, and the microseconds that a launch takes with it."""

    tile: Tile
    us: float


# By (N, K, name of a dtype): by the most rows, of `ROWS`, the tile.
TileTable = dict[tuple[int, int, str], dict[int, TimedTile]]


def table_path(device: torch.device) -> Path:
    """The file for a GPU and the versions that run on it."""
    versions = f"torch_{paths.slug(torch.__version__)}_triton_{paths.slug(triton.__version__)}"
    return paths.CACHE / f"tiles_{paths.slug(torch.cuda.get_device_name(device))}_{versions}.json"


def tiles_for(device: torch.device, dtype: torch.dtype) -> MeasuredTiles:
    """The tiles measured on a GPU for numbers of the size of `dtype`'s; none where kernels are not compiled.

    Raises RecordError for a file that is damaged.
    """
    if device.type != "cuda" or triton_status().mode != "native":
        return NOTHING_MEASURED
    return measured_tiles(read_table(table_path(device)), dtype)


def measured_tiles(table: TileTable, dtype: torch.dtype) -> MeasuredTiles:
    """What a table has for numbers of the size of `dtype`'s."""
    return {
        (N, K): {most_rows: timed.tile for most_rows, timed in by_rows.items()}
        for (N, K, name), by_rows in table.items()
        if DTYPES[name].itemsize == dtype.itemsize
    }


def keep_table(path: Path, new: TileTable) -> None:
    """Write tiles to a file, over those that it has for the same product and number of rows.

    Raises RecordError for a file that is damaged, and OSError if it cannot be written.
    """
    table = read_table(path)
    for product, by_rows in new.items():
        table[product] = dict(sorted((table.get(product, {}) | by_rows).items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(as_json(table), indent=1) + "\n", encoding="utf-8")
    written.replace(path)  # an engine reads the one or the other, never a part


def as_json(table: TileTable) -> dict[str, object]:
    """The JSON form of a table."""
    return {
        "products": [
            {
                "N": N,
                "K": K,
                "dtype": dtype,
                "tiles": [
                    {"rows": rows, "tile": timed.tile, "us": timed.us} for rows, timed in tiles.items()
                ],
            }
            for (N, K, dtype), tiles in table.items()
        ]
    }


def read_table(path: Path) -> TileTable:
    """The table in a file; an empty one if there is no file. Raises RecordError if it is damaged."""
    if not os.path.lexists(path):
        return {}
    try:
        return from_json(path.name, read_json(path))
    except ValueError as error:  # RecordErrors among them
        raise RecordError(
            f"{error}. Delete {path}: then labkit's own tiles are taken, until `python -m labkit.bench tune` "
            "measures anew"
        ) from None


def from_json(name: str, raw: Any) -> TileTable:
    """The table of a JSON form. Raises ValueError saying what is wrong in the file `name`."""
    from labkit.results.shape import COUNT, POSITIVE, TEXT, check_shape  # pandas behind it takes a while

    tile = {"rows": COUNT, "tile": (COUNT,) * len(Tile._fields), "us": POSITIVE}
    check_shape(name, raw, {"products": [{"N": COUNT, "K": COUNT, "dtype": TEXT, "tiles": [tile]}]})
    return {
        product_of(name, product): timed_tiles(name, product["N"], product["tiles"])
        for product in raw["products"]
    }


def product_of(name: str, raw: Mapping[str, Any]) -> tuple[int, int, str]:
    """The key of a product in a table. Raises ValueError for a dtype that no kernel takes."""
    if raw["dtype"] not in DTYPES:
        raise ValueError(f"{name}: dtype must be one of {', '.join(DTYPES)}, not {raw['dtype'][:40]!r}")
    return raw["N"], raw["K"], raw["dtype"]


def timed_tiles(name: str, N: int, raw: Sequence[Mapping[str, Any]]) -> dict[int, TimedTile]:
    """The tiles of a product with N outputs. Raises ValueError for one that an engine cannot take."""
    made = {}
    for each in raw:
        rows, tile = each["rows"], Tile(*each["tile"])
        if rows not in ROWS:
            raise ValueError(f"{name}: rows must be one of {', '.join(map(str, ROWS))}, not {rows}")
        if any(value > most for value, most in zip(tile, MOST, strict=True)):
            raise ValueError(f"{name}: {tile} is larger than {MOST}")
        if not has_workspace(check_tile(tile, can_split=True), rows, N):
            raise ValueError(
                f"{name}: {tile} with {rows} rows and {N} outputs has more parts than there is room for"
            )
        made[rows] = TimedTile(tile, each["us"])
    return made
