"""Lesson 15's diagnosis: a wrong contract is answered by what it would look like."""

import pytest
from exercise_helpers import accepted, is_right, refused

from labkit.learn import not_attempted
from labkit.learn.lesson_15.diagnosis import BROKEN, DIAGNOSIS, WOULD_SHOW
from labkit.learn.lesson_15.sick import PATIENTS


def naming(**contracts):
    return lambda patient: (BROKEN | contracts)[patient]


WRONG = {
    "own slots for A": (naming(A="own slots"), "texts would be wrong in every visit"),
    "undo for A": (naming(A="undo"), "until a step fails"),
    "records for A": (naming(A="records in place"), "new KVBlockInfo objects"),
    "fresh rows for B": (naming(B="fresh rows"), "replaced by a copy"),
    "discard for B": (naming(B="discard"), "tokens behind its end"),
    "addresses for B": (naming(B="fixed addresses"), "would read an old tensor"),
    "kernels for C": (naming(C="few kernels"), "no index tensor more"),
    "slots for C": (naming(C="own slots"), "C looks otherwise"),
    "undo for C": (naming(C="undo"), "patient='C'"),
    "one for all": (lambda patient: "fresh rows", "patient='B'"),
    "no name": (lambda patient: "", "is none of the contracts: own slots, fresh rows"),
    "another name": (lambda patient: "stale row", "'stale row' is none of the contracts"),
    "nothing": (lambda patient: None, "None is none of the contracts"),
    "a list": (lambda patient: ["fresh rows"], "is none of the contracts"),
    "an error": (lambda patient: {}[patient], "raised KeyError"),
}
RIGHT = {
    "a table": lambda patient: {"A": "fresh rows", "B": "undo", "C": "send changes"}[patient],
    "conditions": lambda patient: (
        "fresh rows" if patient == "A" else "undo" if patient == "B" else "send changes"
    ),
}


@refused((DIAGNOSIS, WRONG))
def test_a_wrong_diagnosis_is_refused(exercise, attempt, words):
    verdict = exercise.grade(attempt)
    assert words in verdict and "right" not in verdict
    assert "expected" not in verdict  # which would give the answer away


@accepted((DIAGNOSIS, RIGHT))
def test_a_right_diagnosis_is_right(exercise, attempt):
    assert is_right(exercise, attempt) and is_right(exercise, exercise.solution)


def test_an_empty_diagnosis_is_not_attempted():
    assert DIAGNOSIS.grade(lambda patient: not_attempted()) == "diagnose: not attempted yet."


def test_each_patient_breaks_a_contract_of_the_list():
    assert BROKEN.keys() == PATIENTS.keys() and set(BROKEN.values()) <= WOULD_SHOW.keys()


@pytest.mark.parametrize("name", WOULD_SHOW)
def test_what_a_contract_would_show_is_a_part_of_a_sentence(name):
    assert WOULD_SHOW[name][0].islower() and not WOULD_SHOW[name].endswith(".")
