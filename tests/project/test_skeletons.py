"""What a reader is asked to write can be written: each skeleton, filled with its hints' lines, is right."""

import re

import pytest
from skeletons import solved, steps_of

from labkit import paths
from labkit.learn.lessons import GATES
from labkit.learn.progress import progress
from labkit.paths import ROOT

LESSONS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if steps_of(path)]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_the_hints_fill_the_gaps_and_every_verdict_is_right(notebook, capsys, monkeypatch, tmp_path):
    """And the reader's progress has the gate of each part."""
    monkeypatch.setattr(paths, "MINE", tmp_path)
    _, steps = solved(notebook)
    capsys.readouterr()
    verdicts = [re.match(r"\w+: right\b", capsys.readouterr().out) for _ in steps]
    assert len(verdicts) >= 2 and all(verdicts)
    number = notebook.stem.split("_")[0]
    if number in GATES:
        assert sorted(progress()[number].gates) == sorted(GATES[number].parts)
