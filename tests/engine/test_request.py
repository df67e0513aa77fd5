"""A request's life in numbers: what it holds, what it draws, and what becomes of it."""

import pytest
import torch
from helpers import GREEDY, SEEDED, ByteTokenizer

from labkit import FinishReason, SamplingParams
from labkit.engine.request import Request, sample_requests
from labkit.engine.sampling import uniform_number


def test_a_request_is_its_prompt_and_what_came_after():
    request = Request(3, (1, 2), GREEDY)
    assert (request.token_ids, request.num_tokens) == ((1, 2), 2)
    request.output_token_ids += [7, 8, 9]
    assert (request.token_ids, request.num_tokens) == ((1, 2, 7, 8, 9), 5)


def test_two_requests_are_never_equal_and_each_can_be_a_key():
    first, second = Request(0, (1,), GREEDY), Request(0, (1,), GREEDY)
    assert first != second and len({first, second}) == 2


def test_the_number_that_decides_is_the_seeds_and_the_tokens_place():
    request = Request(0, (1,), SEEDED)
    drawn = [request.next_uniform()]
    request.output_token_ids.append(5)
    drawn.append(request.next_uniform())
    assert drawn == [uniform_number(7, 0), uniform_number(7, 1)]
    assert request.seed == 7
    seeds = {Request(0, (1,), SamplingParams()).seed for _ in range(8)}
    assert len(seeds) == 8 and all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("reason", "error"), [(FinishReason.STOP, None), (FinishReason.ERROR, "not finite numbers")]
)
def test_a_completion_says_what_was_made_and_when(reason, error):
    request = Request(4, (1, 2), GREEDY, arrived=1.0)
    request.output_token_ids += [72, 105]
    request.admitted, request.time_lists = 2.0, [[3.0], [4.5]]
    completion = request.complete(reason, ByteTokenizer(), error)
    assert request.completion is completion
    assert (completion.request_id, completion.prompt_token_ids) == (4, (1, 2))
    assert (completion.token_ids, completion.text) == ((72, 105), "Hi")
    assert completion.timing == (1.0, 2.0, (3.0, 4.5))
    assert (completion.finish_reason, completion.error) == (reason, error)


def test_each_request_gets_a_token_of_its_own_row():
    requests = {Request(i, (1,), GREEDY): None for i in range(3)}  # any collection, in its order
    logits = torch.tensor([[0.0, 2.0, 1.0], [torch.nan, 0.0, 0.0], [3.0, 2.0, 1.0]])
    assert sample_requests(requests, logits) == [1, None, 0]
