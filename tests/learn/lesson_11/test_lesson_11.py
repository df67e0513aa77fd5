"""Lesson 11's build steps: what each gap alone leaves broken, and a part that can be kept."""

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/11_hidden_latency.ipynb"


@pytest.mark.slow
def test_each_step_is_right_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert len(lesson.printed) == 4
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    part = keep("11", "latency", lesson.names["MyLanes"]).load()
    assert part.__module__ != "__main__" and lab.start("11").check(latency=part).ok


@pytest.mark.slow
def test_unfilled_it_is_the_rung_below_and_each_gap_alone_has_its_own_symptom(capsys):
    shell, steps = solved(NOTEBOOK)
    rows, workspaces, lanes, prefetch = steps_of(NOTEBOOK)
    next(steps)
    symptoms = {
        workspaces: "each has for itself: attention in the main stream uses attention's workspace of lane 0",
        lanes: "none is in the side stream",
        rows: "of 4 rows, with `least_rows` 4, `cut` makes 1 part, expected 2.",
        prefetch: "asks for rows [] of the weight before wait(), expected [0, 1]",
    }
    for step, symptom in symptoms.items():
        capsys.readouterr()
        source = step.skeleton.replace("MyLanes(MyWorkspaces)", "MyLanes(MyRows)")
        shell.run_cell(source).raise_error()
        assert symptom in " ".join(capsys.readouterr().out.split()), step
