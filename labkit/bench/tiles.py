"""The search for tiles: which are worth a try, and which of them is fastest, within a time.

It knows no GPU: what compiles, checks and times a tile is handed in, as a `TileBench`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import log2
from statistics import median
from typing import Any, NamedTuple

from labkit.kernels.tiles import (
    ENOUGH_PROGRAMS,
    ROWS,
    Tile,
    has_workspace,
    is_held,
    num_programs,
    staged_bytes,
)
from labkit.results.kernels import TunedTile

STAGES = (3, 4, 5, 6)
AT_ONCE = 16  # tiles that are compiled together
HELD_BYTES = 384  # of weights in a thread's registers, which are 1,020 bytes
NEAREST = 24  # so many are tried before stages and warps are varied, and the others behind that
FINALISTS, FINAL_ROUNDS = 3, 7  # the fastest are timed again, in turn with today's tile
GAIN = 1.02  # by less than that, today's tile stays: noise must not change tiles
FIRST_ROWS = (64, 1, 16, 128, 256)  # in which order numbers of rows are worth measuring
RESERVE, LONGEST_RESERVE = 0.1, 3.0  # of the time, and seconds of it, for timing finalists again


class Product(NamedTuple):
    """A matrix product [M, K] x [K, N] of a layer.

    can_split: whether programs may share a tile of it. is_rms: whether the model's norms are RMSNorms, and
    its products without bias. is_gated: whether half of its outputs are gates of the other half.
    """

    name: str
    N: int
    K: int
    can_split: bool
    is_rms: bool = False
    is_gated: bool = False


class Case(NamedTuple):
    """What one tile is searched for."""

    product: Product
    rows: int  # one of ROWS
    today: Tile  # what an engine takes now


Measure = Callable[[], float]  # seconds of a launch, now


TileBench = Any  # `labkit.bench.tune.GpuTileBench`, or one of a test that has its methods


class Trial(NamedTuple):
    """A tile that was timed, and how to time it again."""

    seconds: float
    tile: Tile
    measure: Measure


@dataclass
class Search:
    """How far the search for one case has come."""

    case: Case
    today: Trial
    all_tiles: list[Tile]  # that are worth a try
    best: list[Trial] = field(default_factory=list)  # the fastest, FINALISTS at most
    tried: set[Tile] = field(default_factory=set)

    def add(self, trial: Trial) -> None:
        """Keep a trial, if it is one of the fastest; what the others held on the GPU is free again."""
        self.best = sorted([*self.best, trial], key=lambda trial: trial.seconds)[:FINALISTS]


# --- which tiles ----------------------------------------------------------------------------------------


def candidates(case: Case, bench: TileBench) -> list[Tile]:
    """The tiles that are worth a try, those first most like today's; held ones and others in turn."""
    kinds = [
        staged_candidates(case, bench.room, bench.element_size),
        held_candidates(case, bench.element_size),
        ring_candidates(case, bench.room) if bench.has_rings else [],
    ]
    return [tile for turn in zip_longest(*kinds) for tile in turn if tile is not None]


def staged_candidates(case: Case, room: int, element_size: int) -> list[Tile]:
    """Tiles that are launched as enough programs, and whose inputs fit into `room` bytes of shared memory."""
    (_, N, K, can_split, *_), rows, _ = case
    made = [
        with_stages(Tile(block_m, block_n, block_k, split_k, 4, 4), K, room, element_size)
        for block_m in (16, 32, 64, 128)
        for block_n in (16, 32, 64, 128, 256)
        for block_k in (64, 128, 256)
        for split_k in ((1, 2, 4, 6, 8) if can_split else (1,))
    ]
    fits = [t for t in fitting(made, case) if has_room(t, room, element_size)]
    most = max((num_programs(t, rows, N) for t in fits), default=0)
    enough = min(ENOUGH_PROGRAMS // 2, most)
    return [
        t
        for t in fits
        if num_programs(t, rows, N) >= enough
        and (t.split_k == 1 or num_programs(t, rows, N) <= 3 * ENOUGH_PROGRAMS)
    ]


def held_candidates(case: Case, element_size: int) -> list[Tile]:
    """Held tiles of which a thread has at most HELD_BYTES of weights."""
    (_, _, K, can_split, *_), rows, _ = case
    made = [
        Tile(block_m, block_n, block_k, split_k, num_warps, 1)
        for block_m in ((1,) if rows == 1 else (16, 32, 64))
        for block_n in ((4, 8, 16, 32) if block_m == 1 else (16, 32, 64))
        for block_k in (128, 256, 512)
        for split_k in ((1, 2, 4, 6) if can_split else (1,))
        for num_warps in (4, 8)
        if block_n * max(block_k, K / split_k) * element_size <= HELD_BYTES * 32 * num_warps
    ]
    return fitting(made, case)


def fitting(tiles: Sequence[Tile], case: Case) -> list[Tile]:
    """Those no larger than the product, whose parts have terms and room; those first most like today's."""
    (_, N, K, *_), rows, today = case
    fits = [
        t
        for t in tiles
        if t.block_m <= max(16, rows) and t.block_n <= up(N) and (t.block_k <= up(K) or t.block_k == 64)
        if (t.split_k == 1 or t.split_k * t.block_k <= K) and has_workspace(t, rows, N)
    ]
    return sorted(fits, key=lambda tile: (distance(tile, today), tile))


def ring_candidates(case: Case, room: int) -> list[Tile]:
    """Tiles with a ring, of which one, two or three programs have room on a multiprocessor; those first that
    are launched as about as many programs as there are multiprocessors."""
    (_, N, K, can_split, *_), rows, _ = case
    made = {
        Tile(block_m, block_n, block_k, split_k, block_m // 16, stages, True)
        for block_m in (64, 128)
        for block_n in (16, 32, 64, 128)
        for block_k in (64, 128, 256)
        for split_k in ((1, 2, 3, 4, 6) if can_split else (1,))
        for programs in (1, 2, 3)
        for boxes in [-(-K // (block_k * split_k))]
        for stages in [min(max(boxes, 2), room // programs // ((block_m + block_n) * block_k * 2))]
        if block_m < 2 * max(64, rows) and stages >= 2
        if split_k == 1 or (boxes * block_k >= 256 and (split_k - 1) * boxes * block_k < K)
    }
    fits = [
        tile
        for tile in made
        if num_programs(tile, rows, N) >= ENOUGH_PROGRAMS // 6 and has_workspace(tile, rows, N)
        if tile.split_k == 1 or num_programs(tile, rows, N) <= 3 * ENOUGH_PROGRAMS
    ]
    return sorted(fits, key=lambda tile: (abs(log2(num_programs(tile, rows, N) / ENOUGH_PROGRAMS)), tile))


def up(number: int) -> int:
    """The power of 2 that is not below a number."""
    return max(16, 1 << (number - 1).bit_length())


def with_stages(tile: Tile, K: int, room: int, element_size: int) -> Tile:
    """A tile with warps for its size, and four stages, or three where four have no room."""
    is_large = tile.block_m * tile.block_n >= 8192 or (tile.block_k == 256 and tile.block_m >= 32)
    tile = tile._replace(num_warps=8 if is_large else 4)
    return tile if has_room(tile, room, element_size) else tile._replace(num_stages=3)


def has_room(tile: Tile, room: int, element_size: int) -> bool:
    """Whether all stages fit into `room` bytes: a GPU may keep the one that is multiplied, too."""
    return staged_bytes(tile._replace(num_stages=tile.num_stages + 1), element_size) <= room


def distance(tile: Tile, other: Tile) -> float:
    """How far two tiles are from each other: doublings of their blocks and parts."""
    return sum(abs(log2(a / b)) for a, b in zip(tile[:4], other[:4], strict=True))


def variants(tile: Tile, room: int, element_size: int) -> list[Tile]:
    """The same blocks with other numbers of stages and warps that fit; of a held tile, in registers or in a
    ring, all have been tried."""
    if is_held(tile):
        return []
    made = [tile._replace(num_stages=stages, num_warps=warps) for warps in (4, 8) for stages in STAGES]
    return [other for other in made if other != tile and has_room(other, room, element_size)]


def rows_up_to(max_batch_size: int) -> list[int]:
    """The numbers of rows to measure for batches of up to so many, the most valuable first."""
    most = next((rows for rows in ROWS if rows >= max_batch_size), ROWS[-1])
    return [rows for rows in FIRST_ROWS if rows <= most]


# --- the search -----------------------------------------------------------------------------------------


def search_tiles(
    cases: Sequence[Case],
    bench: TileBench,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[int], object] = lambda num_tried: None,
) -> list[TunedTile]:
    """The fastest tile of each case that there was time for; the cases of one number of rows take turns.

    seconds: of the whole search; each number of rows has an equal part of what is left of it. progress:
    called with the number of tiles that were tried since. A tile that does not compile, has no room or
    computes something else is passed over.
    """
    end = clock() + seconds - min(RESERVE * seconds, LONGEST_RESERVE)
    found = []
    numbers = list(dict.fromkeys(case.rows for case in cases))
    stages = (
        lambda search: search.all_tiles[:NEAREST],
        lambda search: variants_of_fastest(search, bench),
        lambda search: search.all_tiles,
    )
    for place, rows in enumerate(numbers):
        until = clock() + (end - clock()) / (len(numbers) - place)
        searches = list(begin([case for case in cases if case.rows == rows], bench, until, clock))
        for tiles_of in stages:
            turns = [[(search, tile) for tile in tiles_of(search)] for search in searches]
            queue = [turn for turn in chain.from_iterable(zip_longest(*turns)) if turn is not None]
            try_all(queue, bench, until, clock, progress)
        found += [settle(search) for search in searches if search.best]
    return found


def begin(
    cases: Sequence[Case], bench: TileBench, until: float, clock: Callable[[], float]
) -> Iterator[Search]:
    """A search for each case whose tile of today could be timed."""
    for case, today in bench.compile([(case, case.today) for case in cases], until - clock()):
        if clock() < until:
            measure = bench.measure(case, today)
            yield Search(case, Trial(measure(), today, measure), candidates(case, bench))


def variants_of_fastest(search: Search, bench: TileBench) -> list[Tile]:
    """What the fastest blocks, and today's, can be with other stages and warps."""
    fastest = [*search.best, search.today]
    made = [tile for trial in fastest for tile in variants(trial.tile, bench.room, bench.element_size)]
    return list(dict.fromkeys(made))


def try_all(
    queue: Sequence[tuple[Search, Tile]],
    bench: TileBench,
    until: float,
    clock: Callable[[], float],
    progress: Callable[[int], object],
) -> None:
    """Time these tiles in order, as long as there is time; some at once are compiled before."""
    queue = [(search, t) for search, t in queue if t != search.case.today and t not in search.tried]
    search_of = {search.case: search for search, _ in queue}
    for first in range(0, len(queue), AT_ONCE):
        if clock() >= until:
            return
        some = [(search.case, tile) for search, tile in queue[first : first + AT_ONCE]]
        for case, tile in bench.compile(some, until - clock()):
            if clock() >= until:
                return
            search_of[case].tried.add(tile)
            if (trial := tried(bench, case, tile)) is not None:
                search_of[case].add(trial)
            progress(1)


def tried(bench: TileBench, case: Case, tile: Tile) -> Trial | None:
    """The tile, timed; None if it cannot be launched or computes something else."""
    try:
        if not bench.is_right(case, tile):
            return None
        measure = bench.measure(case, tile)
        return Trial(measure(), tile, measure)
    except Exception:  # of Triton's, of the driver's: no room for it, too many registers
        return None


def settle(search: Search) -> TunedTile:
    """Time the fastest tiles and today's again, in turn; today's stays unless it is clearly slower."""
    trials = [search.today, *search.best]
    rounds = [[trial.measure() for trial in trials] for _ in range(FINAL_ROUNDS)]
    today, *others = zip(*rounds, strict=True)
    seconds, fastest = min(zip(others, search.best, strict=True), key=lambda pair: median(pair[0]))
    if median(today) < GAIN * median(seconds):
        seconds, fastest = today, search.today
    (name, N, K, *_), rows, tile = search.case
    tiles = (tuple(map(int, each)) for each in (tile, fastest.tile))
    return TunedTile(name, N, K, rows, next(tiles), today, next(tiles), seconds, len(search.tried))
