"""Tiles: how a matrix product is cut into programs, and which tile a size gets.

A tile that was measured on the GPU, or on one of its kind, comes first (`labkit.kernels.tile_tables` has
those), then the table here, then a rule.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from labkit.kernels.triton_runtime import shared_memory_of


class Tile(NamedTuple):
    """How a matrix product is cut: a program makes [block_m, block_n] outputs, block_k inputs at a time, and
    split_k programs share one such tile.

    num_stages: how many pieces of block_k inputs are on their way at once. With 1 a program loads all its
    weights into registers before the kernel before it has ended. block_m 1: for a single row, multiplied
    without tensor cores. ring: the TMA of a Hopper GPU brings the pieces (`ring_linear`), the first of the
    weights before the kernel before has ended.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int
    ring: bool = False

    @property
    def blocks(self) -> dict[str, int]:
        """What a kernel is compiled with."""
        sizes = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k}
        return sizes | {"num_warps": self.num_warps}


NUMBERS = Tile._fields[:-1]


def is_held(tile: Tile) -> bool:
    """Whether a program has weights, in registers or in a ring, before it waits for its inputs."""
    return tile.num_stages == 1 or tile.ring


def can_be_boxed(matrix: Tensor) -> bool:
    """Whether a TMA can cut boxes from a matrix of 16-bit numbers: its rows begin at multiples of 16
    bytes."""
    places = matrix.data_ptr(), matrix.stride(0) * matrix.element_size()
    return matrix.element_size() == 2 and matrix.stride(1) == 1 and all(place % 16 == 0 for place in places)


# --- tiles for any GPU, and the rule ---------------------------------------------------------------------

ENOUGH_PROGRAMS = 100  # of an H100's 132 multiprocessors: with fewer, the weights come too slowly
LARGEST_HEAD = 4 * 65_535  # of as many programs as a grid may have in its second direction: see `head_tile`

# (N, K) of GPT-2 124M: (the most rows, their tile), from few rows to many; measured on an H100.
TILES: dict[tuple[int, int], tuple[tuple[int, Tile], ...]] = {
    (2304, 768): (  # queries, keys and values, after the first LayerNorm
        (16, Tile(16, 64, 128, 1, 4, 6)),
        (64, Tile(16, 64, 128, 1, 4, 5)),
        (128, Tile(64, 64, 128, 1, 4, 4)),
        (256, Tile(64, 128, 128, 1, 8, 3)),
    ),
    (3072, 768): (  # the first half of the MLP, after the second LayerNorm
        (16, Tile(16, 64, 128, 1, 4, 6)),
        (64, Tile(32, 64, 256, 1, 8, 3)),
        (128, Tile(64, 64, 128, 1, 4, 4)),
        (256, Tile(64, 128, 128, 1, 8, 3)),
    ),
    (768, 768): (  # attention's output projection
        (16, Tile(16, 16, 256, 1, 4, 4)),
        (64, Tile(64, 32, 128, 1, 4, 4)),
        (256, Tile(64, 64, 128, 1, 4, 4)),
    ),
    (768, 3072): (  # the second half of the MLP
        (16, Tile(16, 64, 128, 6, 4, 4)),
        (64, Tile(64, 32, 128, 6, 4, 4)),
        (128, Tile(64, 32, 128, 2, 4, 5)),
        (256, Tile(64, 64, 128, 2, 4, 4)),
    ),
}


def tile_of(M: int, N: int, K: int, *, can_split: bool = True) -> Tile:
    """The tile of a product [M, K] x [K, N]: from the table, else the widest that makes enough programs.

    can_split: whether several programs may share a tile, each with a part of the inputs.
    """
    for most_rows, tile in TILES.get((N, K), ()):
        if most_rows >= M and (can_split or tile.split_k == 1):
            return tile
    block_m = next((block_m for block_m in (16, 32) if block_m >= M), 64)
    block_k = min(128, max(16, 1 << (K - 1).bit_length()))  # a power of 2
    num_blocks_k = -(-K // block_k)
    num_stages = min(4, num_blocks_k + 1)

    def programs(block_n: int) -> int:
        return -(-M // block_m) * -(-N // block_n)

    for block_n in (64, 32):
        if programs(block_n) >= ENOUGH_PROGRAMS:
            return Tile(block_m, block_n, block_k, 1, 4, num_stages)
    block_n = 32 if can_split and num_blocks_k > 1 else 16
    split_k = min(-(-ENOUGH_PROGRAMS // programs(block_n)), num_blocks_k, 8) if can_split else 1
    return Tile(block_m, block_n, block_k, split_k, 4, num_stages)


def head_tile(K: int, element_size: int) -> Tile:
    """The tile of the head for a single row: held where registers have room for the weights.

    Measured on an H100 for vocabularies of 49,152 to 151,936 and K of 576 to 2,048.
    """
    return Tile(1, 4, 256, 1, 2, 1) if K * element_size <= 4096 else Tile(1, 8, 1024, 1, 4, 2)


# --- tiles that were measured ---------------------------------------------------------------------------

# Tiles are measured for this many; one serves all above the number before it, and that for 16 also a single
# row that has none of its own.
ROWS = (1, 16, 64, 128, 256)

# By (N, K): by the most rows of ROWS, the tile. Where one is missing, the table and the rule go on.
MeasuredTiles = Mapping[tuple[int, int], Mapping[int, Tile]]
NOTHING_MEASURED: MeasuredTiles = MappingProxyType({})


def measured_tile(measured: MeasuredTiles, M: int, N: int, K: int, *, can_split: bool) -> Tile | None:
    """The measured tile of a product [M, K] x [K, N], or None if there is none."""
    by_rows = measured.get((N, K))
    if by_rows is None:
        return None
    tile = by_rows.get(next((most_rows for most_rows in ROWS if most_rows >= M), 0))
    if tile is None and M == 1:
        return measured_tile(measured, 2, N, K, can_split=can_split)
    return tile if tile is None or can_split or tile.split_k == 1 else None


def default_tile(
    x: Tensor, weight: Tensor, measured: MeasuredTiles = NOTHING_MEASURED, *, can_split: bool
) -> Tile:
    """The tile for x [M, K] and weight [N, K] on their device: the measured one, if there is one.

    measured: for x's element size. Else, or where that is a ring and the TMA cannot read these two,
    `tile_of` picks it for half precision on an H100; float32 gets fewer inputs at a time, for a thread's
    registers hold fewer of them. A GPU with less shared memory gets what fits into it.
    """
    (M, K), N = x.shape, len(weight)
    tile = chosen_tile(max(M, 1), N, K, measured, x.element_size(), can_split=can_split)
    if tile.ring and not (can_be_boxed(x) and can_be_boxed(weight)):
        tile = chosen_tile(max(M, 1), N, K, NOTHING_MEASURED, x.element_size(), can_split=can_split)
    return tile_with_room(tile, x.element_size(), shared_memory_of(x.device))


def chosen_tile(
    M: int, N: int, K: int, measured: MeasuredTiles, element_size: int, *, can_split: bool
) -> Tile:
    """The tile of a product [M, K] x [K, N] of such numbers, on a GPU with room for any."""
    tile = measured_tile(measured, M, N, K, can_split=can_split)
    if tile is None:
        tile = tile_of(M, N, K, can_split=can_split)
        if element_size == 4:
            tile = tile._replace(block_k=max(16, tile.block_k // 4))
    return tile


# --- what a GPU and a workspace have room for ----------------------------------------------------------

NUM_PARTIALS, NUM_SHARED_TILES = 2**21, 2**12  # of a split-K workspace: partial sums, and tiles in a launch


def num_partials_of(num_tiles: int, tile: Tile) -> int:
    """Partial sums of a launch of `num_tiles` tiles, each shared by tile.split_k programs."""
    return num_tiles * tile.split_k * tile.block_m * tile.block_n


def num_programs(tile: Tile, M: int, N: int) -> int:
    """Programs of a launch with M rows and N outputs."""
    return num_tiles(tile, M, N) * tile.split_k


def num_tiles(tile: Tile, M: int, N: int) -> int:
    """Tiles of a result [M, N]."""
    return -(-M // tile.block_m) * -(-N // tile.block_n)


def has_workspace(tile: Tile, M: int, N: int) -> bool:
    """Whether an engine's split-K workspace has room for the parts of a result [M, N]."""
    tiles = num_tiles(tile, M, N)
    return tile.split_k == 1 or (num_partials_of(tiles, tile) <= NUM_PARTIALS and tiles <= NUM_SHARED_TILES)


def tile_with_room(tile: Tile, element_size: int, room: int) -> Tile:
    """The tile, cut until its staged inputs fit into `room` bytes: first fewer stages, then fewer inputs per
    stage. element_size: bytes of an input."""
    while staged_bytes(tile, element_size) > room and (tile.num_stages > 2 or tile.block_k > 16):
        if tile.num_stages > 2:
            tile = tile._replace(num_stages=tile.num_stages - 1)
        else:
            tile = tile._replace(block_k=tile.block_k // 2)
    return tile


def staged_bytes(tile: Tile, element_size: int) -> int:
    """Bytes of shared memory for the inputs in flight while others are multiplied: those of all stages but
    one, and of all stages of a ring.

    Hopper and data center Blackwell keep the last one as well; no tile comes near the 227 KiB they have.
    """
    return (tile.num_stages - (not tile.ring)) * (tile.block_m + tile.block_n) * tile.block_k * element_size


def check_tile(tile: Tile, can_split: bool) -> Tile:
    """The values as a `Tile`. Raises ValueError naming the field that no kernel can be compiled for."""
    tile = Tile(*tile)
    for name, value in zip(NUMBERS, tile, strict=False):
        is_power_of_2 = value > 0 and value & (value - 1) == 0
        least = 16 if name == "block_k" or tile.block_m > 1 else 4 if name == "block_n" else 1
        if name.startswith("block_") and not (is_power_of_2 and value >= least):
            raise ValueError(f"tile.{name} is {value}, expected a power of 2, at least {least}")
        if name == "num_warps" and not is_power_of_2:
            raise ValueError(f"tile.num_warps is {value}, expected a power of 2")
        if value < 1:
            raise ValueError(f"tile.{name} is {value}, expected at least 1")
    if tile.ring and (tile.block_m, tile.num_warps) not in ((64, 4), (128, 8)):
        raise ValueError(f"{tile} has a ring: expected block_m 64 and 4 warps, or 128 and 8")
    if tile.ring and (not 64 <= tile.block_k <= 256 or tile.block_n > 256 or tile.num_stages < 2):
        raise ValueError(
            f"{tile} has a ring: expected block_k 64 to 256, block_n up to 256, 2 stages or more"
        )
    if tile.split_k > 1 and not can_split:
        raise ValueError(f"tile.split_k is {tile.split_k}, but a product behind a norm is not split")
    return tile
