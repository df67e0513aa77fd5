"""Sampling parameters: those at the edge are taken."""

import pytest
from sampling_helpers import random_logits

from labkit import SamplingParams
from labkit.engine.sampling import sample, uniform_number
from labkit.errors import RequestError


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
        {"min_p": 1},
        {"min_p": 1e-300},
        {"logprobs": 0},
        {"logprobs": 20},
        {"seed": -5},
        {"seed": 2**70},
    ],
    ids=str,
)
def test_a_value_at_the_edge_is_taken_and_gives_a_token(fields: dict):
    params = SamplingParams(**{"temperature": 1.0} | fields)
    (token,) = sample(random_logits(1, 30), [params], [uniform_number(params.seed or 0, 0)])
    assert 0 <= token < 30


def test_one_stop_string_or_several_are_kept_where_nobody_can_change_them():
    strings = ["a", "b"]
    params = SamplingParams(stop=strings)
    strings.append("c")
    assert params.stop == ("a", "b") and SamplingParams(stop="ab").stop == ("ab",)


def test_an_unknown_field_is_refused_by_its_name():
    with pytest.raises(RequestError, match="no 'top_q': did you mean top_p"):
        SamplingParams(top_q=0.5)
