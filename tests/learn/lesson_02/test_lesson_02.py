"""Lesson 02's build steps: the counts that say a step is done, and a part that can be kept."""

import pytest
from skeletons import filled

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/02_batched_append.ipynb"
DONE = [
    "8 requests with room: 6 writes, 69 calls; all at a boundary: 48 writes, 63 calls",
    "8 requests with room: 6 writes, 69 calls; all at a boundary: 6 writes, 117 calls",
    "8 requests with room: 6 writes, 21 calls; all at a boundary: 6 writes, 69 calls",
]


@pytest.mark.slow
def test_each_step_makes_fewer_writes_or_calls_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert lesson.last_lines == DONE

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("02")
    mine = keep("02", "kv_append", lesson.names["MyAppend"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(kv_append=part).ok
    card = here.card(kv_append=part)
    assert card["yours"].equals(card["the package's"])
    assert list(here.measure(batch_size=2, rounds=1, kv_append=part).seconds)[1] == "yours"
