"""Tables of tiles that were measured on a GPU: those that labkit ships, and the user's own.

labkit ships a file for a GPU by its name. The user's is for one GPU, torch and triton, and `python -m
labkit.bench tune` writes it. An engine reads both once, when it is made, and the user's come first.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labkit import paths
from labkit.checks import shown
from labkit.errors import RecordError
from labkit.json_file import read_json
from labkit.kernels.tiles import (
    NOTHING_MEASURED,
    ROWS,
    MeasuredTiles,
    Tile,
    check_tile,
    has_workspace,
    is_held,
)
from labkit.kernels.triton_runtime import HAS_GLUON, is_hopper, triton, triton_status

SHIPPED = Path(__file__).parent / "shipped_tiles"
H100 = "nvidia_h100_80gb_hbm3"


def name_of(dtype: torch.dtype) -> str:
    """A dtype's name, "float16"."""
    return str(dtype).removeprefix("torch.")


DTYPES = {name_of(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32)}


class TimedTile(NamedTuple):
    """What a file has of a product [rows, K] x [K, N]: its tile, and the microseconds of a launch."""

    N: int
    K: int
    dtype: str  # of the numbers that were measured
    rows: int  # one of ROWS
    tile: Tile
    us: float


@dataclass(frozen=True)
class TimedTiles:
    """What a file holds."""

    tiles: tuple[TimedTile, ...]


def table_path(device: torch.device) -> Path:
    """The file for a GPU and the versions that run on it."""
    versions = f"torch_{paths.slug(torch.__version__)}_triton_{paths.slug(triton.__version__)}"
    return paths.CACHE / f"tiles_{paths.slug(torch.cuda.get_device_name(device))}_{versions}.json"


def shipped_path(device: torch.device) -> Path:
    """The file that labkit ships for such a GPU, if it ships one."""
    return SHIPPED / f"{paths.slug(torch.cuda.get_device_name(device))}.json"


def tiles_for(device: torch.device, dtype: torch.dtype, can_hold: bool = False) -> MeasuredTiles:
    """The tiles measured on a GPU for numbers of the size of `dtype`'s, or on one of its kind; none where
    kernels are not compiled.

    can_hold: with the held ones, where one is faster. Raises RecordError for a file that is damaged.
    """
    if not is_compiled_for(device):
        return NOTHING_MEASURED
    timed = [*read_shipped(device), *read_table(table_path(device))]
    return measured_tiles(timed, dtype, can_hold)


def read_shipped(device: torch.device) -> list[TimedTile]:
    """What labkit ships for such a GPU; and where it is a Hopper, an H100's tiles for products that were not
    measured on one, or not with held tiles."""
    own = read_table(shipped_path(device))
    if not is_hopper(device):
        return own
    known = {(timed.N, timed.K, is_held(timed.tile)) for timed in own}
    of_h100 = read_table(SHIPPED / f"{H100}.json")
    return [*own, *(t for t in of_h100 if (t.N, t.K, is_held(t.tile)) not in known)]


def is_compiled_for(device: torch.device) -> bool:
    """Whether kernels are compiled for a device, so that tiles matter."""
    return device.type == "cuda" and triton_status().mode == "native"


def measured_tiles(table: Iterable[TimedTile], dtype: torch.dtype, can_hold: bool = False) -> MeasuredTiles:
    """What a table has for numbers of the size of `dtype`'s; of two entries for the same, the later.

    can_hold: held tiles are in it, too, and those with a ring where Triton has Gluon.
    """
    measured: dict[tuple[int, int], dict[int, Tile]] = {}
    for timed in table:
        is_usable = (can_hold or not is_held(timed.tile)) and (HAS_GLUON or not timed.tile.ring)
        if DTYPES[timed.dtype].itemsize == dtype.itemsize and is_usable:
            measured.setdefault((timed.N, timed.K), {})[timed.rows] = timed.tile
    return measured


def keep_table(path: Path, new: Iterable[TimedTile]) -> None:
    """Write tiles to a file, over those that it has for the same product, dtype and number of rows. Only a
    held tile goes beside one that is not, which engines take that hold none.

    Raises RecordError for a file that is damaged, and OSError if it cannot be written.
    """
    kept: dict[tuple[Any, ...], TimedTile] = {}
    for timed in [*read_table(path), *new]:
        kept.pop((*timed[:4], True), None)
        kept[(*timed[:4], is_held(timed.tile))] = timed
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    raw = {"tiles": [timed._asdict() for _, timed in sorted(kept.items())]}
    written.write_text(json.dumps(raw) + "\n", encoding="utf-8")
    written.replace(path)  # an engine reads the one or the other, never a part


def read_table(path: Path) -> list[TimedTile]:
    """The table in a file; an empty one if there is no file. Raises RecordError if it is damaged."""
    from labkit.results.typed import read_as  # pandas behind it takes a while

    if not os.path.lexists(path):
        return []
    try:
        table = read_as(TimedTiles, read_json(path), path.name)
        return [check_timed(path.name, timed) for timed in table.tiles]
    except ValueError as error:  # RecordErrors among them
        raise RecordError(
            f"{error}. Delete {path}: then labkit's own tiles are taken, until `python -m labkit.bench tune` "
            "measures anew"
        ) from None


def check_timed(name: str, timed: TimedTile) -> TimedTile:
    """The entry itself. Raises ValueError if no engine can take it."""
    tile = timed.tile
    if timed.dtype not in DTYPES:
        raise ValueError(f"{name}: dtype must be one of {', '.join(DTYPES)}, not {shown(timed.dtype)}")
    if timed.rows not in ROWS:
        raise ValueError(f"{name}: rows must be one of {', '.join(map(str, ROWS))}, not {shown(timed.rows)}")
    if tile.ring and DTYPES[timed.dtype].itemsize != 2:
        raise ValueError(f"{name}: {tile} has a ring, which is for numbers of 16 bits, not {timed.dtype}")
    if not has_workspace(check_tile(tile, can_split=True), timed.rows, timed.N):
        raise ValueError(f"{name}: {tile} has more parts than there is room for")
    return timed
