"""Lesson 13's build steps: the verdicts of skeletons and of filled ones, and a part that can be kept."""

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/13_ragged_batches.ipynb"


@pytest.mark.slow
def test_each_step_is_right_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert lesson.printed[2].startswith("shares: right. 9 batches")

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    mine = keep("13", "batching", lesson.names["MyChunk"])
    for name in ("MyRows", "MyChunk"):
        assert f"class {name}(" in mine.source
    part = mine.load()
    assert part.__module__ != "__main__" and lab.start("13").check(batching=part).ok


@pytest.mark.slow
def test_unfilled_every_step_is_refused_by_what_it_leaves_undone(capsys):
    shell, steps = solved(NOTEBOOK)
    verdicts = []
    for step in steps_of(NOTEBOOK):
        capsys.readouterr()
        shell.run_cell(step.skeleton).raise_error()
        verdicts.append(" ".join(capsys.readouterr().out.split()))
        next(steps)
    served = "batching breaks a contract: each prompt gets its rows, first come, first served"
    assert all(verdict.startswith(served) for verdict in verdicts[:2]), verdicts
    assert verdicts[2].startswith("shares breaks a contract: nobody waits for a large share")
