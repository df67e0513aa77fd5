"""Lesson 20's three patients: each fault shows where it should, and a benchmark's visit shows none."""

import pytest

from labkit.learn.lesson_20 import sick

pytestmark = pytest.mark.slow

WELL = "3 of 3 texts match transformers; every block is accounted for"
VISITS = {
    "plain": {},
    "shared": {"share": True},
    "failing": {"fail": True},
    "small blocks": {"block_size": 4},
    "both": {"fail": True, "block_size": 4},
}
SHOWN = {
    ("A", "shared"): "2 of 3 texts match transformers; every block is accounted for",
    ("B", "both"): "only up to step 3, which could not be undone: it refuses every call (BrokenEngineError)",
}


@pytest.mark.parametrize("visit", VISITS)
@pytest.mark.parametrize("name", sick.PATIENTS)
def test_a_fault_shows_in_its_own_visit_alone(tiny, name, visit):
    seen = sick.visit(name, tiny, **VISITS[visit])
    assert seen.startswith(f"{name}: ")
    assert SHOWN.get((name, visit), WELL) in seen
