"""What a reader is asked to write can be written: each skeleton, filled with its hints' lines, is right."""

import pytest
from skeletons import filled, steps_of

from labkit.ladder import all_pages
from labkit.paths import ROOT

WITH_STEPS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if steps_of(path)]
LESSON_TESTS = [path.read_text("utf-8") for path in (ROOT / "tests/learn").glob("*/test_lesson_*.py")]
FILLED_THERE = [
    path for path in WITH_STEPS if any(f"{path.name}" in t and "filled(" in t for t in LESSON_TESTS)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "notebook", [path for path in WITH_STEPS if path not in FILLED_THERE], ids=lambda path: path.stem
)
def test_the_hints_fill_the_gaps_and_every_verdict_is_right(notebook):
    """Of the notebooks that no lesson's own tests fill."""
    assert len(filled(notebook).printed) == len(steps_of(notebook))


def test_every_page_has_skeletons():
    assert [path.name for path in WITH_STEPS] == sorted(page.notebook for page in all_pages())
