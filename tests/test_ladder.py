"""The ladder as data."""

import re
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from helpers import small_model

from labkit import LADDER, EngineOptions, InferenceEngine
from labkit.errors import OptionError
from labkit.ladder import CAPSTONE, LESSONS, PAGES, WRITE_UPS, all_pages
from labkit.paths import ROOT


def test_rungs_are_numbered_from_00_without_a_gap():
    assert list(LADDER) == [f"{i:02}" for i in range(len(LADDER))]
    assert all(LADDER[number].number == number for number in LADDER)


def test_each_rung_has_the_lesson_of_its_number():
    for number, rung in LADDER.items():
        lesson = LESSONS[number]
        assert (lesson.number, lesson.slug, lesson.title) == (number, rung.slug, rung.title)
        assert lesson.rung is rung
    assert LESSONS["00"].notebook == "00_paged_engine.ipynb"
    assert len({lesson.notebook for lesson in LESSONS.values()}) == len(LESSONS)


def test_the_capstone_is_a_lesson_and_no_rung():
    assert list(LESSONS) == [*LADDER, CAPSTONE.number] == [f"{i:02}" for i in range(len(LESSONS))]
    assert CAPSTONE.rung is list(LADDER.values())[-1]
    assert CAPSTONE.notebook == f"{len(LADDER):02}_complete_engine.ipynb"


def test_a_page_is_named_after_the_lesson_that_it_comes_before():
    assert all(number.removeprefix("before_") in LESSONS for number in PAGES)
    assert PAGES["before_00"].notebook == "before_00_how_a_cpu_drives_a_gpu.ipynb"


def test_each_rung_says_what_it_is():
    assert all(rung.title and rung.write_up and rung.removes for rung in LADDER.values())


def test_every_write_up_that_is_named_has_a_title():
    named = {n for rung in LADDER.values() for n in re.findall(r"\d{3}", rung.write_up)}
    for file in (ROOT / "labkit").rglob("*.py"):
        named |= set(re.findall(r"(?:write-up|seed) (0\d\d)", file.read_text(encoding="utf-8")))
    assert named == set(WRITE_UPS)
    assert WRITE_UPS["036"] == "Paged attention block table cache"


def test_an_engine_is_the_last_rung_unless_it_is_told_otherwise():
    assert EngineOptions() == LADDER["00"].options
    assert InferenceEngine(small_model(), device="cpu").options == list(LADDER.values())[-1].options


def test_each_rung_is_the_one_below_with_one_option_changed():
    for below, rung in pairwise(LADDER.values()):
        changed = dict(asdict(rung.options).items() - asdict(below.options).items())
        # With one table for all layers, the place of a token is the same in each, so attention can store it.
        expected = 2 if rung.number == "07" else 1
        assert len(changed) == expected, f"rung {rung.number} changes {changed}"


def test_the_attention_is_the_same_on_every_rung():
    assert {rung.options.attention for rung in LADDER.values()} == {"auto"}


def test_a_rung_can_be_asked_for_politely():
    assert "00" in LADDER and "99" not in LADDER
    assert LADDER.get("99") is None


def test_the_capstone_is_refused_as_a_rung():
    last = list(LADDER)[-1]
    with pytest.raises(
        OptionError, match=rf"no rung '{CAPSTONE.number}'; there are 00, 01, .* {last}, as text"
    ):
        LADDER[CAPSTONE.number]


def test_a_rung_is_found_by_its_number():
    assert [LADDER[number].number for number in LADDER] == list(LADDER)
    assert LADDER[np.str_("05")] is LADDER["05"] is LADDER.get("05")


def test_a_page_is_read_before_its_lesson():
    numbers = [page.number for page in all_pages()]
    assert numbers[:6] == ["before_00", "00", "01", "02", "before_03", "03"]
    assert len(numbers) == len(set(numbers)) == len(LESSONS) + len(PAGES)
