"""The trials of appends: which moments they meet, and that an engine that holds passes them."""

import pytest
from helpers import build_of

from labkit.kvcache import KVBlockManager
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.appends import failed_write, own_slots, started, undo

RUNGS = ("02", "03", "04", "05")


@pytest.mark.parametrize("trial", [own_slots, failed_write])
@pytest.mark.parametrize("rung", RUNGS)
def test_the_packages_engines_pass(rung, trial):
    trial(build_of(rung))


def test_the_first_decode_step_meets_copies_and_a_full_block():
    engine = started(build_of("02"))
    first = dict(engine.stats().append_paths)
    engine.step()
    made_ready = {path: count - first.get(path, 0) for path, count in engine.stats().append_paths.items()}
    # In each of two layers: three blocks that a cached prompt holds, too, and one that is full.
    assert made_ready == {"copy_on_write": 6, "boundary": 2, "indexed": 2, "in_place": 0}


def test_lengths_and_blocks_that_stay_after_a_failure_are_told():
    engine = started(build_of("02"))
    session, *_ = engine.scheduler.running.values()
    engine.kv_manager.block_refcounts[session.block_ids_per_layer[0][0]] += 1
    with pytest.raises(BrokenContract, match="a failed step can be undone: reference counts differ"):
        undo(engine)


def test_a_write_with_too_few_slots_is_told_with_what_it_was_given():
    class OneSlotShort(KVBlockManager):
        def write_batch(self, layer_idx, batch_idx, block_idx, pos, key_new, value_new):
            super().write_batch(layer_idx, batch_idx, block_idx, pos[:-1], key_new, value_new)

    told = r"layer 0 was written with batch_idx \[0, 1, 2, 3\], .* and pos \[2, 2, 3\], expected one of each"
    with pytest.raises(BrokenContract, match=told):
        own_slots(build_of("02", block_info=OneSlotShort))
