"""Whatever is handed in is taken or refused by name, and shown in a short line."""

import re

import numpy as np
import pytest
import torch
from bad_values import Broken
from helpers import GREEDY, make_engine
from hypothesis import given
from hypothesis import strategies as st

from labkit import LADDER, CacheConfig, SamplingParams
from labkit.checks import listed, quoted, shown
from labkit.engine.device import pick_device
from labkit.errors import LabkitError

ATOMS = st.one_of(
    st.none(),
    *(st.booleans(), st.integers(), st.integers(0, 255), st.floats(), st.complex_numbers()),
    *(st.text(max_size=5), st.binary(max_size=5), st.decimals(), st.fractions(), st.builds(Broken)),
    st.builds(np.int64, st.integers(-5, 5)),
    st.builds(torch.tensor, st.integers(-5, 5) | st.floats() | st.booleans()),
)
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers(0, 9))
        | st.dictionaries(st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
SPARE = make_engine()


@pytest.mark.slow
@given(ANYTHING)
def test_whatever_is_handed_in_is_taken_or_refused_by_name(value):
    calls = {
        "prompt|token id": lambda: SPARE.check_prompt(value, GREEDY),
        "request_id": lambda: SPARE.cancel(value),
        "params": lambda: SPARE.add_request([1], value),
        "rung": lambda: LADDER[value],
        "device": lambda: pick_device(value),
        **{
            name: lambda name=name: SamplingParams(**{name: value})
            for name in SamplingParams.__dataclass_fields__
        },
        **{name: lambda name=name: CacheConfig(**{name: value}) for name in CacheConfig.__dataclass_fields__},
    }
    for name, call in calls.items():
        try:
            call()
        except LabkitError as error:
            assert re.search(name, str(error)) and len(str(error)) < 400
        assert not SPARE.has_work


@given(ANYTHING)
def test_a_value_is_shown_in_a_short_line(value):
    assert 0 < len(shown(value)) <= 80 and "\n" not in shown(value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("one\n two"), "one two"),
        (ValueError("x" * 5000), "x" * 300 + "..."),
        (ValueError("\ud800"), "\\ud800"),
        ("", ""),
    ],
)
def test_what_another_library_says_is_a_line(error, said):
    assert quoted(error) == said


def test_names_out_of_a_file_are_listed_as_they_are_if_they_can_be_shown():
    assert listed({"b", "a"}) == "a, b"
    assert listed(["a\nb"]) == "'a\\nb'" and len(listed(["x" * 1000])) < 100
    assert listed([f"{n:02}" for n in range(12)]) == "00, 01, 02, 03, 04 and 7 more"
