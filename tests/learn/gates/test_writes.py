"""Trials of a write: every case of a batch, and what is told of a slot that is wrong."""

import pytest
from helpers import make_engine

from labkit import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.writes import CASES, far_blocks, few_indices, right_slots


def build(model, dtype=None):
    return make_engine(model, LADDER["04"].options)


def path_of(is_whole, is_constant):
    return "full_batch" if is_whole and is_constant else "identity_pos" if is_whole else "generic"


def without_values(model, dtype=None):
    """An engine whose values are never written."""
    engine = build(model)
    write = engine.kv_manager.kv_write.write
    engine.kv_manager.kv_write.write = lambda k, v, key, value, *about: write(
        k, v.clone(), key, value, *about
    )
    return engine


def test_the_cases_are_of_every_kind():
    kinds = {(case.is_whole, len(set(case.pos)) == 1) for case in CASES}
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}
    assert any(case.head_dim & (case.head_dim - 1) for case in CASES)  # no power of 2


@pytest.mark.parametrize("trial", [right_slots(path_of), few_indices, far_blocks])
def test_the_packages_write_holds(trial):
    assert trial(build) is None


def test_values_that_are_not_written_are_told():
    with pytest.raises(BrokenContract, match="value"):
        right_slots(path_of)(without_values)


def test_another_path_than_the_right_one_is_told_by_name():
    generic_never = right_slots(lambda is_whole, is_constant: path_of(True, is_constant))
    with pytest.raises(BrokenContract, match=r"generic.*identity_pos|generic.*full_batch"):
        generic_never(build)
