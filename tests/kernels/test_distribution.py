"""From probabilities to a token: against transformers' warpers, and at every edge."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_helpers import LAST_UNIFORM, random_logits, sampled
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from labkit import SamplingParams
from labkit.engine.sampling import warped_probabilities
from labkit.engine.sampling.host import draw

COMBINATIONS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.1, 0.7, 1.0, 1.3, 5.0),
        (0, 1, 2, 40, 299, 300, 10_000),
        (1.0, 0.999, 0.9, 0.5, 0.1, 1e-9),
        (0.0, 0.05, 0.6, 1.0),
    )
]

# --- warping ---------------------------------------------------------------------------------------


def hf_probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """One row [V] as `transformers.generate` warps it."""
    scores = TemperatureLogitsWarper(params.temperature)(None, logits[None])
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    return scores.softmax(dim=-1)[0]


def assert_like_transformers(logits: Tensor, params: list[SamplingParams]) -> None:
    expected = torch.stack([hf_probabilities(row, p) for row, p in zip(logits, params, strict=True)])
    actual = warped_probabilities(logits, params)
    assert torch.equal(actual == 0, expected == 0)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-7)


def test_one_batch_of_all_combinations_equals_transformers():
    assert_like_transformers(random_logits(len(COMBINATIONS), 300), COMBINATIONS)


@pytest.mark.parametrize("top_p", [0.1, 0.2, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_where_all_tokens_tie_top_p_cuts_exactly_where_transformers_does(top_p: float):
    for num_tokens in range(1, 41):
        assert_like_transformers(torch.zeros(1, num_tokens), [sampled(top_p=top_p)])


@pytest.mark.parametrize("temperature", [1e30, 1.7e308])
def test_the_largest_temperature_makes_all_tokens_alike_but_what_is_ruled_out(temperature: float):
    logits = random_logits(1, 9)
    logits[0, 8] = -torch.inf
    probabilities = warped_probabilities(logits, [SamplingParams(temperature=temperature)])
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 8] * 8 + [0.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_warped_in_float32(dtype: torch.dtype):
    logits = random_logits(4, 50).to(dtype)
    params = [sampled(), sampled(temperature=0.3), sampled(top_k=5), sampled(top_p=0.8)]
    assert torch.equal(warped_probabilities(logits, params), warped_probabilities(logits.float(), params))


# --- drawing ---------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-9, 0.1, 1.0, 3.0]), min_size=1, max_size=30).filter(any),
    st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 2**-53, LAST_UNIFORM]),
)
def test_a_token_of_probability_0_is_never_drawn(weights: list[float], u: float):
    probabilities = torch.tensor([weights]) / sum(weights)
    (token,) = draw(probabilities, [u])
    assert probabilities[0, token] > 0


@pytest.mark.parametrize("u, token", [(0.0, 1), (0.4999, 1), (0.5, 3), (LAST_UNIFORM, 3)])
def test_a_number_on_a_boundary_belongs_to_the_token_above(u: float, token: int):
    assert draw(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]), [u]) == [token]


def test_a_token_too_unlikely_for_a_float32_sum_still_has_its_share():
    small = 2**-26  # 0.5 + small is 0.5 in float32
    probabilities = torch.tensor([[0.5, small, small, 0.5]])
    places = [0.5 + small / 2, 0.5 + 3 * small / 2]
    assert draw(probabilities.expand(2, 4), [place / (1 + 2 * small) for place in places]) == [1, 2]
