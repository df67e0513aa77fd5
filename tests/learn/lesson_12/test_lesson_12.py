"""Lesson 12's build steps: the counts that say a step is done, and a part that can be kept."""

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/12_sampling_without_sorts.ipynb"
DONE = "sorts in a step: 0 with top-k and top-p, 0 without"


@pytest.mark.slow
def test_each_step_is_right_and_done_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert set(lesson.last_lines) == {DONE}

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    mine = keep("12", "sampler", lesson.names["my_sampler"])
    for name in ("my_draw", "my_crossing", "my_top_k", "my_top_p"):
        assert f"def {name}(" in mine.source
    part = mine.load()
    assert part.__module__ != "__main__" and lab.start("12").check(sampler=part).ok


@pytest.mark.slow
def test_unfilled_every_step_sorts_and_the_gate_says_so(capsys):
    shell, steps = solved(NOTEBOOK)
    sorts = []
    for step in steps_of(NOTEBOOK):
        capsys.readouterr()
        shell.run_cell(step.skeleton).raise_error()
        verdict, *_, line = capsys.readouterr().out.splitlines()
        assert verdict.startswith(
            "sampler breaks a contract: nothing is sorted: the sampler asked for `sort`"
        )
        sorts.append(line.removeprefix("sorts in a step: "))
        next(steps)
    assert sorts == [
        "2 with top-k and top-p, 2 without",
        "1 with top-k and top-p, 0 without",
        "1 with top-k and top-p, 0 without",
    ]
