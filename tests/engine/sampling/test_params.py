"""Sampling parameters: wrong ones are refused by name, those at the edge are taken."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from bad_values import HUGE, JUNK, NO_BOOL, NO_SIZE, refused_by_name, rows, without
from sampling_helpers import random_logits

from labkit import SamplingParams
from labkit.engine.sampling import sample, uniform_number
from labkit.errors import RequestError

NO_NUMBER = without(JUNK, "a number", "a float") | {
    "None": None,
    "True": True,
    "NaN": float("nan"),
    "a negative number": -1,
    "a huge negative number": -HUGE,
    "text of a number": "0.5",
    "complex": 1j,
    "Decimal": Decimal("0.5"),
    "Fraction": Fraction(1, 2),
    "NumPy's float32": np.float32(0.5),
    "torch's number": torch.tensor(0.5),
}
SAMPLING = rows(
    max_new_tokens=NO_SIZE | {"None": None},
    temperature=NO_NUMBER,
    top_p=NO_NUMBER | {"zero": 0, "above one": 1.0001},
    top_k=without(NO_SIZE, "zero") | {"None": None},
    seed=without(NO_SIZE, "zero", "a negative number", "a huge negative number"),
    stop_on_eos=NO_BOOL,
)


@pytest.mark.parametrize(("name", "value"), SAMPLING)
def test_a_wrong_sampling_parameter_is_refused_by_name(name, value):
    with refused_by_name(RequestError, name):
        SamplingParams(**{name: value})


# --- parameters ------------------------------------------------------------------------------------

BAD_VALUES = {
    "max_new_tokens": [0, -1, 1.5, True, "8", None, math.nan],
    "temperature": [math.nan, math.inf, -math.inf, -1, -1e-9, "x", None, True, 10**400],
    "top_k": [-1, 1.0, True, None, "5"],
    "top_p": [0, -0.1, 1.1, math.nan, math.inf, "x", None, True],
    "seed": ["a", 1.5, True],
}


@pytest.mark.parametrize(
    "field, value", [(field, value) for field, values in BAD_VALUES.items() for value in values]
)
def test_a_value_out_of_range_is_refused_by_the_fields_name(field: str, value: object):
    with pytest.raises(RequestError, match=f"^{field} must be .*, not "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"max_new_tokens": 1},
        {"temperature": 0},
        {"temperature": 1e-300},
        {"top_k": 0},
        {"top_k": 10**30},
        {"top_p": 1},
        {"top_p": 1e-300},
        {"seed": -5},
        {"seed": 2**70},
    ],
    ids=str,
)
def test_a_value_at_the_edge_is_taken_and_gives_a_token(fields: dict):
    params = SamplingParams(**{"temperature": 1.0} | fields)
    (token,) = sample(random_logits(1, 30), [params], [uniform_number(params.seed or 0, 0)])
    assert 0 <= token < 30


def test_an_unknown_field_is_refused_by_its_name():
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=0.5)
