"""Lesson 15's staircase: which of the reader's parts the clock sees, and all engines in turn."""

import pytest
import torch

from labkit.kvcache import CachedBlockTables, IdentityPosWrite, OneTableBlockManager
from labkit.ladder import LADDER
from labkit.learn.assembly import Assembly
from labkit.learn.kept import Kept
from labkit.learn.lesson_15.finale import measure_staircase, timed_parts

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PARTS = {
    ("01", "block_tables"): CachedBlockTables,
    ("04", "kv_write"): IdentityPosWrite,
    ("07", "layer_tables"): OneTableBlockManager,
    ("08", "launch"): print,
    ("13", "batching"): print,
}


@pytest.fixture
def mine(tmp_path):
    """An assembly of parts that are loaded already."""
    loaded = {Kept(*name, tmp_path): part for name, part in PARTS.items()}
    return Assembly(list(loaded), loaded)


def test_what_a_step_without_a_model_cannot_show_is_not_timed(mine):
    assert list(timed_parts(mine, "01", CPU)) == ["block_tables"]
    assert list(timed_parts(mine, "04", CPU)) == ["block_tables"]  # a kernel of the reader's is interpreted
    assert list(timed_parts(mine, "04", GPU)) == ["block_tables", "kv_write"]
    assert list(timed_parts(mine, "14", CPU)) == list(timed_parts(mine, "14", GPU)) == ["layer_tables"]


@pytest.mark.slow
def test_all_rungs_run_in_turn_with_the_readers_where_there_is_one(mine):
    stairs = measure_staircase(mine, CPU, batch_size=2, rounds=1)
    assert list(stairs.package) == list(LADDER)
    assert list(stairs.yours) == [number for number in LADDER if number not in ("00", "06")]
    assert all(len(runs) == 2 and min(runs) > 0 for runs in stairs.package.values())
