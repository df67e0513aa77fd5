"""Lesson 20: one load on two engines, and all rungs in turn with the reader's parts."""

import pytest
import torch
from helpers import EXACT

from labkit.kvcache import BlockPrefixCache, CachedBlockTables, IdentityPosWrite, OneTableBlockManager
from labkit.learn.assembly import Assembly
from labkit.learn.kept import Kept
from labkit.learn.lesson_20.finale import guests, measure_staircase, serve, timed_parts


@pytest.mark.slow
def test_both_engines_serve_the_same_requests_and_the_readers_has_their_part(tiny, tmp_path):
    found = []

    class Mine(BlockPrefixCache):
        def find(self, *args):
            found.append(super().find(*args))
            return found[-1]

    def never(*args):
        raise AssertionError("without a GPU, a toy graph stays out")

    parts = {Kept("08", "launch", tmp_path): never, Kept("14", "prefixes", tmp_path): Mine}
    load = guests(tiny, torch.device("cpu"), num_requests=4)
    served = serve(Assembly(list(parts), parts), load, rounds=2)
    assert served.parts == ["prefixes (14)"] and found
    assert [run.tokens for run in (*served.first, *served.yours)] == 8 * [sum(load.max_new_tokens)]
    first, all_tokens = served.waits.values()
    assert len(first.before_samples) == len(all_tokens.after_samples) == 4
    assert 0 < first.after_samples[0] < all_tokens.after_samples[0]
    assert repr(served).startswith("tokens per second: rung 00 ")


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
    assert list(stairs.package) == EXACT
    assert list(stairs.yours) == [number for number in EXACT if number not in ("00", "06")]
    assert all(len(runs) == 2 and min(runs) > 0 for runs in stairs.package.values())
