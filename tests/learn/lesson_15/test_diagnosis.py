"""Lesson 15's diagnosis: a wrong contract is answered by what it would look like."""

from labkit.learn.lesson_15.diagnosis import BROKEN, WOULD_SHOW
from labkit.learn.lesson_15.sick import PATIENTS


def test_each_patient_breaks_a_contract_of_the_list():
    assert BROKEN.keys() == PATIENTS.keys() and set(BROKEN.values()) <= WOULD_SHOW.keys()
