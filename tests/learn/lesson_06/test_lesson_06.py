"""Lesson 06's build steps: the count that says a step is done, and a part that can be kept."""

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.learn.kept import keep
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/06_device_resident_state.ipynb"
SENT = [  # in steps of 128: of 8 requests, all numbers; rows at 4 boundaries; nothing else
    "sent in 128 of 128 steps: 128 copies, 170,496 numbers",
    "sent in 128 of 128 steps: 128 copies, 25,344 numbers",
    "sent in 4 of 128 steps: 4 copies, 2,304 numbers",
]


@pytest.mark.slow
def test_each_step_sends_less_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert lesson.last_lines == SENT

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("06")
    mine = keep("06", "block_tables", lesson.names["MySlots"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(block_tables=part).ok
    card = here.card(block_tables=part)
    assert card["yours"].equals(card["the package's"])


@pytest.mark.slow
def test_the_skeletons_are_an_engine_that_sends_everything(capsys):
    """The text is right from the start; what is missing is told."""
    shell, _ = solved(NOTEBOOK)
    capsys.readouterr()
    verdicts = []
    for step in steps_of(NOTEBOOK):
        shell.run_cell(step.skeleton).raise_error()
        verdict, *_, sent = capsys.readouterr().out.splitlines()
        verdicts.append(verdict)
        assert sent == SENT[0]
    assert "a request keeps its slot" in verdicts[0]
    assert all("only what changed is sent" in verdict for verdict in verdicts[1:])
