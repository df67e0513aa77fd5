"""Measured tiles, as recorded."""

import json

import pytest
from made_records import record_of

from labkit.results.tiles import TilesRecord, TunedTile, tiles_table

FASTER = TunedTile(
    "MLP up",
    6400,
    1600,
    64,
    (64, 64, 128, 1, 4, 4),
    (6e-6, 9e-6, 7e-6),
    (32, 64, 256, 1, 8, 3),
    (4e-6,) * 3,
    50,
)
KEPT = TunedTile(
    "MLP down", 1600, 6400, 16, (16, 32, 128, 2, 4, 4), (5e-6,), (16, 32, 128, 2, 4, 4), (5e-6,), 40
)


def test_a_launch_is_timed_by_its_median():
    assert (FASTER.today_us, FASTER.us, FASTER.gain) == pytest.approx((7, 4, 1.75))
    assert KEPT.gain == 1


def test_a_tile_survives_its_record():
    record = record_of("tiles", [FASTER, KEPT], seconds=60, dtype="float16")
    assert TilesRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_the_table_has_todays_tile_and_the_fastest_of_each_product():
    table = tiles_table((FASTER, KEPT))
    today, best = "64 x 64 x 128, 4 warps, 4 stages", "32 x 64 x 256, 8 warps, 3 stages"
    assert table.loc[("MLP up", 64)].tolist() == [today, "7.00", best, "4.00", "×1.75", 50]
    split = "16 x 32 x 128, split 2, 4 warps, 4 stages"
    assert table.loc[("MLP down", 16)].tolist() == [split, "5.00", split, "5.00", "×1.00", 40]
