"""What a reader is asked to write can be written: each skeleton, filled with its hints' lines, is right."""

import re

import pytest
from skeletons import filled, steps_of

from labkit.learn.lessons import GATES
from labkit.paths import ROOT

LESSONS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if steps_of(path)]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_the_hints_fill_the_gaps_and_every_verdict_is_right(notebook):
    """And the reader's progress has the gate of each part."""
    lesson = filled(notebook)
    verdicts = [re.match(r"\w+: right\b", text) for text in lesson.printed]
    assert len(verdicts) >= 2 and all(verdicts)
    number = notebook.stem.split("_")[0]
    if number in GATES:
        assert sorted(lesson.noted[number].gates) == sorted(GATES[number].parts)
