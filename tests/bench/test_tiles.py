"""The search for tiles, with a bench that has no GPU: its times, its failures and its clock are made up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.bench.tiles import (
    FINAL_ROUNDS,
    NEAREST,
    Case,
    Product,
    candidates,
    rows_up_to,
    search_tiles,
    variants,
)
from labkit.kernels.tile_tables import TimedTile, check_timed
from labkit.kernels.tiles import Tile, check_tile, has_workspace, staged_bytes, tile_of
from labkit.results.kernels import TunedTile

ROOM = 227 * 2**10  # an H100's
QKV, PROJECTION = Product("qkv", 3072, 1024, False), Product("projection", 1024, 1024, True)


def case_of(product: Product, rows: int = 64) -> Case:
    return Case(product, rows, tile_of(rows, product.N, product.K, can_split=product.can_split))


@dataclass
class FakeBench:
    """A launch takes what `seconds_of` says; compiling moves the clock."""

    seconds_of: Callable[[Case, Tile], float]
    is_wrong: Callable[[Tile], bool] = lambda tile: False
    fails: Callable[[Tile], bool] = lambda tile: False
    compiles: Callable[[Tile], bool] = lambda tile: True
    seconds_per_compile: float = 0.0
    room: int = ROOM
    element_size: int = 2
    has_rings: bool = False
    now: float = 100.0
    compiled: list[tuple[Case, Tile]] = field(default_factory=list)
    measured: list[tuple[Case, Tile]] = field(default_factory=list)
    num_timed: int = 0

    def clock(self) -> float:
        return self.now

    def compile(self, tries: Sequence[tuple[Case, Tile]], seconds: float) -> list[tuple[Case, Tile]]:
        ready, until = [], self.now + seconds
        for case, tile in tries:
            if self.now + self.seconds_per_compile > until:
                self.now = until
                break
            self.now += self.seconds_per_compile
            self.compiled.append((case, tile))
            if self.compiles(tile):
                ready.append((case, tile))
        return ready

    def is_right(self, case: Case, tile: Tile) -> bool:
        if self.fails(tile):
            raise RuntimeError("out of resource: shared memory")
        return not self.is_wrong(tile)

    def measure(self, case: Case, tile: Tile) -> Callable[[], float]:
        self.measured.append((case, tile))

        def timed() -> float:
            self.num_timed += 1
            return self.seconds_of(case, tile)

        return timed

    def search(self, cases: Sequence[Case], seconds: float = 60.0) -> list[TunedTile]:
        return search_tiles(cases, self, seconds, self.clock)


def favouring(best: Tile, gain: float = 2.0) -> Callable[[Case, Tile], float]:
    return lambda case, tile: 1e-6 / gain if tile == best else 1e-6


def no_time(case: Case, tile: Tile) -> float:
    raise AssertionError("nothing is measured here")


# --- which tiles ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.sampled_from([1, 16, 64, 128, 256]),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.booleans(),
    st.sampled_from([2, 4]),
    st.sampled_from([64, 99, 227]),
    st.booleans(),
)
def test_every_candidate_can_be_taken(rows, N, K, can_split, element_size, kib, has_rings):
    case = case_of(Product("any", N, K, can_split), rows)
    bench = FakeBench(no_time, room=kib * 2**10, element_size=element_size, has_rings=has_rings)
    made = candidates(case, bench)
    assert made and len(set(made)) == len(made)
    assert has_rings or not any(tile.ring for tile in made)
    for tile in made:
        assert check_tile(tile, can_split) == tile and has_workspace(tile, rows, N)
        if tile.ring:
            assert check_timed("a file", TimedTile(N, K, "float16", rows, tile, 1.0))
            assert staged_bytes(tile, 2) <= kib * 2**10 and tile.block_m in (64, 128)
            assert tile.split_k == 1 or (tile.split_k - 1) * tile.block_k < K  # no part is empty
        else:
            assert staged_bytes(tile, element_size) < kib * 2**10 and tile.num_stages in (1, 3, 4)
            assert tile.block_m <= max(16, rows) and (tile.split_k == 1 or tile.split_k * tile.block_k <= K)


def test_rows_are_measured_up_to_the_batch_the_most_valuable_first():
    assert [rows_up_to(most) for most in (1, 16, 17, 64)] == [[1], [1, 16], [64, 1, 16], [64, 1, 16]]
    assert [rows_up_to(most) for most in (65, 999)] == [[64, 1, 16, 128], [64, 1, 16, 128, 256]]


# --- the search -----------------------------------------------------------------------------------------


def test_the_fastest_tile_is_found_also_by_its_stages_and_warps():
    case = case_of(QKV)
    blocks = candidates(case, FakeBench(no_time))[8]
    best = variants(blocks, ROOM, 2)[-1]

    def seconds_of(case: Case, tile: Tile) -> float:
        return 1e-6 if tile == best else 2e-6 if tile[:4] == best[:4] else 3e-6

    (found,) = FakeBench(seconds_of).search([case])
    assert (found.product, found.rows, found.tile) == ("qkv", 64, best)
    assert (found.seconds, found.today_seconds) == ((1e-6,) * FINAL_ROUNDS, (3e-6,) * FINAL_ROUNDS)
    assert found.num_tried >= len(candidates(case, FakeBench(no_time))) - 1 > NEAREST


@pytest.mark.parametrize(("gain", "is_taken"), [(0.5, False), (1.0, False), (1.019, False), (1.03, True)])
def test_today_s_tile_stays_unless_another_is_clearly_faster(gain: float, is_taken: bool):
    case = case_of(PROJECTION)
    best = candidates(case, FakeBench(no_time))[5]
    (found,) = FakeBench(favouring(best, gain)).search([case])
    assert found.tile == (best if is_taken else case.today)
    assert found.today_seconds[0] / found.seconds[0] == pytest.approx(gain if is_taken else 1)


def test_a_tile_that_was_fast_once_is_timed_again_before_it_wins():
    case, lucky = case_of(PROJECTION), []

    def seconds_of(case: Case, tile: Tile) -> float:
        """Each is fast the first time."""
        lucky.append(tile)
        return 1e-7 if tile != case.today and lucky.count(tile) == 1 else 1e-6

    bench = FakeBench(seconds_of)
    (found,) = bench.search([case])
    assert found.tile == case.today and found.seconds == found.today_seconds
    assert bench.num_timed == len(bench.measured) + 4 * FINAL_ROUNDS


@pytest.mark.parametrize("how", ["fails", "compiles", "is_wrong"])
def test_a_tile_that_fails_or_computes_something_else_is_passed_over(how: str):
    """Its launch fails, for want of room for example, or its compilation."""
    case = case_of(PROJECTION)
    first, second = candidates(case, FakeBench(no_time))[5:7]

    def seconds_of(case: Case, tile: Tile) -> float:
        return {first: 1e-7, second: 5e-7}.get(tile, 1e-6)

    bench = FakeBench(seconds_of, **{how: lambda tile: (tile == first) != (how == "compiles")})
    (found,) = bench.search([case])
    assert found.tile == second and (case, first) not in bench.measured


# --- its time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1, 5, 20, 60])
def test_the_search_ends_in_time(seconds: float):
    cases = [case_of(product, rows) for rows in (64, 16) for product in (QKV, PROJECTION)]
    bench = FakeBench(lambda case, tile: 1e-6, seconds_per_compile=0.3)
    bench.search(cases, seconds)
    assert bench.now <= 100 + seconds
    assert len(bench.compiled) <= seconds / 0.3
