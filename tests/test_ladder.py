"""The ladder as data."""

from dataclasses import FrozenInstanceError, asdict, fields
from itertools import pairwise

import pytest
from helpers import make_engine

from labkit import LADDER, EngineOptions
from labkit.engine.parts import BLOCK_INFO, BLOCK_TABLES, KV_APPEND, KV_WRITE
from labkit.options import CHOICES


def test_rungs_are_numbered_from_00_without_a_gap():
    assert list(LADDER) == [f"{i:02}" for i in range(len(LADDER))]
    assert all(LADDER[number].number == number for number in LADDER)


def test_each_rung_names_its_notebook():
    assert LADDER["00"].notebook == "00_paged_engine.ipynb"
    assert all(rung.notebook == f"{rung.number}_{rung.slug}.ipynb" for rung in LADDER.values())
    assert len({rung.slug for rung in LADDER.values()}) == len(LADDER)


def test_each_rung_says_what_it_is():
    assert all(rung.title and rung.seed and rung.removes for rung in LADDER.values())


def test_each_rung_is_the_one_below_with_one_option_changed():
    for below, rung in pairwise(LADDER.values()):
        changed = asdict(rung.options).items() - asdict(below.options).items()
        assert len(changed) == 1, f"rung {rung.number} changes {dict(changed)}"


def test_the_attention_is_the_same_on_every_rung():
    assert {rung.options.attention for rung in LADDER.values()} == {"auto"}


def test_a_rung_can_be_asked_for_politely():
    assert "00" in LADDER and "99" not in LADDER
    assert LADDER.get("99") is None


def test_every_option_has_its_choices_and_every_choice_its_class():
    assert {field.name for field in fields(EngineOptions)} == set(CHOICES)
    classes = {
        "block_tables": BLOCK_TABLES,
        "kv_append": KV_APPEND,
        "kv_write": KV_WRITE,
        "block_info": BLOCK_INFO,
    }
    assert set(classes) == set(CHOICES) - {"attention"}  # which is a function
    for name, by_choice in classes.items():
        assert tuple(by_choice) == CHOICES[name]
        assert len(set(by_choice.values())) == len(by_choice)
    assert all(field.default in CHOICES[field.name] for field in fields(EngineOptions))


@pytest.mark.parametrize("rung", LADDER.values(), ids=LADDER)
def test_an_engine_is_made_of_the_classes_that_its_options_name(rung):
    engine, options = make_engine(options=rung.options), rung.options
    assert type(engine.decode_step.block_tables) is BLOCK_TABLES[options.block_tables]
    assert type(engine.decode_step.kv_append) is KV_APPEND[options.kv_append]
    assert type(engine.kv_manager) is BLOCK_INFO[options.block_info]
    assert type(engine.kv_manager.kv_write) is KV_WRITE[options.kv_write]


def test_the_options_say_which_class_each_choice_is():
    for by_choice in (BLOCK_TABLES, KV_APPEND, KV_WRITE, BLOCK_INFO):
        assert all(f"`{cls.__name__}`" in EngineOptions.__doc__ for cls in by_choice.values())


def test_options_cannot_be_changed_under_an_engine():
    with pytest.raises(FrozenInstanceError):
        LADDER["00"].options.block_tables = "rebuilt"
