"""What a reader is asked to write can be written: each skeleton, filled with its hints' lines, is right."""

import re

import pytest
from skeletons import solved, steps_of

from labkit.paths import ROOT

LESSONS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if steps_of(path)]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_the_hints_fill_the_gaps_and_every_verdict_is_right(notebook, capsys):
    _, steps = solved(notebook)
    capsys.readouterr()
    verdicts = [re.match(r"\w+: right\b", capsys.readouterr().out) for _ in steps]
    assert len(verdicts) >= 2 and all(verdicts)
