"""Lesson 10's build steps: the counts that say a step is done, and a part that can be kept."""

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.learn.lesson_10.played_gpu import measure_played
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/10_overlap.ipynb"
DONE = "four requests: 20 steps, launched ahead: 19; tokens for nobody: 3"


@pytest.mark.slow
def test_each_step_is_right_and_done_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert set(lesson.last_lines) == {DONE}

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("10")
    mine = keep("10", "readback", lesson.names["MyReadback"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(readback=part).ok
    card = here.card(readback=part)
    assert card["yours"].equals(card["the rung below"])  # overlap is on no card
    played = measure_played(here.below, here.rung, {"readback": part}, 100, "cpu", batch_size=2, rounds=1)
    assert list(played.seconds)[1] == "yours"


@pytest.mark.slow
def test_unfilled_it_reads_at_once_and_each_gap_alone_has_its_own_symptom(capsys):
    shell, steps = solved(NOTEBOOK)
    first, rows, going = steps_of(NOTEBOOK)
    next(steps)
    capsys.readouterr()
    refused = {}
    for name, skeleton in {
        "rows": rows.skeleton,
        "going": going.skeleton.replace("MyRows", "MyOrder"),
    }.items():
        shell.run_cell(skeleton).raise_error()
        refused[name] = capsys.readouterr().out
    assert refused["rows"].startswith("readback breaks a contract: a token goes to the session that")
    assert "tokens for nobody: 1" in refused["rows"]
    assert refused["going"].startswith("readback breaks a contract: a limit counts the token in flight")
    assert "tokens for nobody: 4" in refused["going"]
    shell.run_cell(first.skeleton).raise_error()
    verdict, *_, line = capsys.readouterr().out.splitlines()
    assert verdict.startswith("readback breaks a contract: the next step is launched before this one is read")
    assert line == "four requests: 19 steps, launched ahead: 0; tokens for nobody: 0"
