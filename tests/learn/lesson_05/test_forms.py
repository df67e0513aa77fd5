"""Lesson 05's ways to count one token: each counts, and all are timed in turn."""

import pytest

from labkit.kvcache import KVBlockInfo, MutableKVBlockInfo
from labkit.learn.lesson_05 import forms
from labkit.learn.lesson_05.forms import CLASSES, FORMS, PlainKVBlockInfo

ALL = FORMS | CLASSES


def lengths_of(infos):
    """The lengths that the records of a form say."""
    each = infos.values() if isinstance(infos, dict) else infos
    return [int(info[3] if isinstance(info, tuple) else getattr(info, "length", info)) for info in each]


@pytest.mark.parametrize("name", ALL)
def test_each_way_of_counting_counts(name):
    make, count_up = ALL[name]
    infos = make(3)
    assert lengths_of(infos) == [0, 0, 0]
    for _ in range(2):
        count_up(infos, [0, 1, 2])
    assert lengths_of(infos) == [2, 2, 2]


def test_the_forms_are_timed_in_turn_and_compared_with_the_first(monkeypatch):
    seconds = dict(zip(FORMS.values(), (8e-9, 4e-9, 2e-9, 1e-9, 1e-9, 4e-9), strict=True))
    times_asked = dict.fromkeys(FORMS.values(), 0)

    def timed(form):
        times_asked[form] += 1
        return seconds[form]

    monkeypatch.setattr(forms, "time_form", timed)
    table = forms.time_forms(rounds=2)
    assert list(table.index) == list(FORMS)
    assert list(table["ns per token"]) == [8, 4, 2, 1, 1, 4]
    assert list(table["times as fast"]) == [1, 2, 4, 8, 8, 2]
    assert table["interval"].iloc[1] == "[2.000, 2.000]"
    assert set(times_asked.values()) == {2 + 4}  # a round to warm up, there and back, and two to measure


def test_a_form_is_really_timed():
    assert all(forms.time_form(form, num_blocks=3, num_tokens=4) > 0 for form in ALL.values())


def test_slots_take_less_memory_than_a_dict():
    sizes = {k: forms.bytes_of_a_record(k) for k in (KVBlockInfo, PlainKVBlockInfo, MutableKVBlockInfo)}
    assert 32 < sizes[MutableKVBlockInfo] < sizes[PlainKVBlockInfo]
    assert all(size < 500 for size in sizes.values())
