"""Trials of an append: the package's holds, and a write to another's slot or a count that stays is told."""

import pytest
from helpers import make_engine

from labkit import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.appends import failed_write, own_slots, started


def build(model, cache=None, scheduler=None, dtype=None):
    return make_engine(model, LADDER["02"].options, prefix_cache=True)


def one_slot_on(model, **settings):
    """An engine that asks for each write a slot too late."""
    engine = build(model)
    manager = engine.kv_manager
    write = manager.write_batch
    manager.write_batch = lambda layer_idx, batch_idx, block_idx, pos, key, value: write(
        layer_idx, batch_idx, block_idx, [(p + 1) % 4 for p in pos], key, value
    )
    return engine


def test_an_engine_is_started_with_requests_that_run():
    engine = started(build)
    assert engine.scheduler.running and not engine.scheduler.waiting


@pytest.mark.parametrize("trial", [own_slots, failed_write])
def test_the_packages_append_holds(trial):
    assert trial(build) is None


def test_a_write_to_another_slot_is_told_with_the_right_one():
    with pytest.raises(BrokenContract, match=r"slot \d"):
        own_slots(one_slot_on)
