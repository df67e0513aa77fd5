"""Lesson 05's build steps: the counts that say a step is done, and the package's own lines."""

import inspect

import pytest
from skeletons import filled, steps_of

from labkit import lab, paths
from labkit.kvcache import MutableInfoBlockManager
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/05_mutable_kv_block_info.ipynb"


@pytest.mark.slow
def test_each_step_costs_what_the_text_says_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert [line.removeprefix("an append of 64 tokens: ") for line in lesson.last_lines] == [
        "0 records, 72 calls, 192 reads of the table, 0 writes to it",
        "0 records, 135 calls, 128 reads of the table, 0 writes to it",
        "0 records, 7 calls, 64 reads of the table, 0 writes to it",
    ]

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("05")
    mine = keep("05", "block_info", lesson.names["MyBlockManager"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(block_info=part).ok
    card = here.card(block_info=part)
    assert card["yours"].equals(card["the package's"])


def test_the_hints_are_the_packages_own_lines():
    """Of a length that is set, and of the order: collect, write, count."""
    (_, set_length), (append,), _ = (step.pieces for step in steps_of(NOTEBOOK))
    assert set_length.strip() in inspect.getsource(MutableInfoBlockManager.set_length)
    count = append.splitlines()[-2:]
    package_lines = inspect.getsource(MutableInfoBlockManager.append_token_batch).splitlines()
    assert package_lines[-2:] == [count[0].replace("infos", "last_infos"), count[1]]
