"""The ladder as data."""

from dataclasses import asdict
from itertools import pairwise

from helpers import small_model

from labkit import LADDER, EngineOptions, InferenceEngine
from labkit.ladder import CAPSTONE, FINISHED, LESSONS, MODERN_MODEL, SERVER, SEVERAL_GPUS, SPECULATION


def test_lessons_about_the_finished_engine_are_no_rungs():
    without_a_rung = (MODERN_MODEL, SPECULATION, SEVERAL_GPUS, SERVER, CAPSTONE)
    assert list(LESSONS) == sorted([*LADDER, *(lesson.number for lesson in without_a_rung)])
    assert {lesson.rung for lesson in without_a_rung} == {FINISHED}
    assert CAPSTONE.notebook == "20_complete_engine.ipynb"


def test_an_engine_is_the_last_rung_with_exact_tokens_unless_it_is_told_otherwise():
    assert EngineOptions() == LADDER["00"].options
    assert InferenceEngine(small_model(), device="cpu").options == FINISHED.options
    assert FINISHED is [rung for rung in LADDER.values() if rung.is_exact][-1]
    assert [number for number, rung in LADDER.items() if not rung.is_exact] == ["16"]


def test_each_rung_is_the_one_below_with_one_option_changed():
    for below, rung in pairwise(LADDER.values()):
        changed = dict(asdict(rung.options).items() - asdict(below.options).items())
        # With one table for all layers, the place of a token is the same in each, so attention can store it.
        expected = 2 if rung.number == "07" else 1
        assert len(changed) == expected, f"rung {rung.number} changes {changed}"
