"""Lesson 01's build steps: the count that says a step is done, and the package's own lines."""

import inspect

import pytest
from skeletons import filled, steps_of

from labkit import lab, paths
from labkit.engine import InferenceSession
from labkit.kvcache import CachedBlockTables
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/01_block_table_cache.ipynb"


@pytest.mark.slow
def test_each_step_makes_few_rows_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    made = "rows made: 96 of 6144; index tensors in a step: "
    assert lesson.last_lines == [f"{made}{index_tensors}" for index_tensors in (9, 9, 3)]

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("01")
    mine = keep("01", "block_tables", lesson.names["MyBlockTables"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(block_tables=part).ok
    card = here.card(block_tables=part)
    assert card["yours"].equals(card["the package's"])


def test_the_hints_are_the_packages_own_lines():
    """Of the signature, and of the rows that are put together in one call."""
    _, (signature,), (_, fill) = (step.pieces for step in steps_of(NOTEBOOK))
    row_source = inspect.getsource(InferenceSession.get_paged_block_table_row_cpu)
    assert signature.strip().replace("return", "signature =") in row_source
    fill_lines = inspect.getsource(CachedBlockTables.fill).splitlines()
    loop, offset, _, stack = fill.splitlines()
    assert {loop, offset, stack} <= set(fill_lines)
