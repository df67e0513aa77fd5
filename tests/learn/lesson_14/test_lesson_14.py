"""Lesson 14's build steps: the count that says all is done, and a part that can be kept."""

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/14_block_prefix_cache.ipynb"
DONE = "computed: 491 of 1,499 prompt tokens"


@pytest.mark.slow
def test_each_step_is_right_and_done_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert set(lesson.last_lines) == {DONE}

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    mine = keep("14", "prefixes", lesson.names["MyPrefixCache"])
    for name in ("MyKeys", "MyFind", "MyKeep", "MyPrefixCache"):
        assert f"class {name}(" in mine.source
    part = mine.load()
    assert part.__module__ != "__main__" and lab.start("14").check(prefixes=part).ok


@pytest.mark.slow
def test_unfilled_each_step_runs_and_the_gate_says_what_it_lacks(capsys):
    shell, steps = solved(NOTEBOOK)
    verdicts, counts = [], []
    for step in steps_of(NOTEBOOK):
        capsys.readouterr()
        shell.run_cell(step.skeleton).raise_error()
        verdict, *_, count = capsys.readouterr().out.splitlines()
        verdicts.append(verdict.removeprefix("prefixes breaks a contract: ").split(":")[0])
        counts.append(count)
        next(steps)
    assert verdicts == [
        "a key stands for all of a text up to the block's end",
        "the longest run of cached blocks is found",
        "the longest run of cached blocks is found",
        "one block goes at a time",
    ]
    assert counts == [
        f"computed: {count} of 1,499 prompt tokens" for count in ("1,387", "1,499", "1,499", "779")
    ]
