"""Lesson 15's three patients: each fault shows where it should, and a benchmark's visit shows none."""

from dataclasses import replace

import pytest

from labkit.learn.lesson_15 import sick

pytestmark = pytest.mark.slow

WELL = "3 of 3 texts are transformers'; every block is accounted for"
VISITS = {
    "plain": {},
    "shared": {"share": True},
    "failing": {"fail": True},
    "small blocks": {"block_size": 4},
    "failing in small blocks": {"fail": True, "block_size": 4},
}
SHOWN = {
    ("A", "shared"): "2 of 3 texts are transformers'; every block is accounted for",
    ("B", "failing in small blocks"): "after step 3 it refuses every call (BrokenEngineError)",
}


@pytest.mark.parametrize("visit", VISITS)
@pytest.mark.parametrize("name", sick.PATIENTS)
def test_a_fault_shows_in_its_own_visit_alone(tiny, name, visit):
    seen = repr(sick.visit(name, tiny, **VISITS[visit]))
    assert seen.startswith(f"{name}: ")
    assert SHOWN.get((name, visit), WELL) in seen


@pytest.mark.parametrize("visit", VISITS)
@pytest.mark.parametrize("name", sick.PATIENTS)
def test_the_same_visit_to_a_healthy_engine_shows_nothing(tiny, monkeypatch, name, visit):
    healthy = replace(sick.PATIENTS[name], parts={})
    monkeypatch.setitem(sick.PATIENTS, name, healthy)
    assert repr(sick.visit(name, tiny, **VISITS[visit])) == f"{name}: {WELL}"


def test_only_the_cards_of_c_differ(tiny):
    cards = sick.cards(tiny)
    assert list(cards) == ["rung 05", "A", "rung 10", "B", "rung 07", "C"]
    assert cards["rung 05"].equals(cards["A"]) and cards["rung 10"].equals(cards["B"])
    assert cards.loc["index tensors constructed", ["rung 07", "C"]].tolist() == [0, 1]
    assert not [row for row in cards.index if row.startswith("GPU")]


def test_host_times_compare_each_patient_with_a_healthy_engine():
    found = sick.host_times(rounds=2)
    assert {name: (c.before, c.after) for name, c in found.items()} == {
        "A": ("rung 05", "A"),
        "B": ("rung 10", "B"),
        "C": ("rung 07", "C"),
    }
    assert all(len(c.before_samples) == len(c.after_samples) == 4 for c in found.values())


def test_a_patient_says_what_it_claims_to_be():
    assert repr(sick.PATIENTS["A"]) == "A, which says that it is rung 05"
