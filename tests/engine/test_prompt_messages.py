"""Refused requests: the message says what to do, and nothing has changed."""

import numpy as np
import pytest
import torch
from helpers import GREEDY, make_engine, tokens_alone, tokens_of

from labkit import SamplingParams
from labkit.errors import RequestError

LONG = [1] * 64
# (prompt, params, message); the model has 256 tokens and 64 positions, the pool 4 blocks of 4 tokens.
BAD_REQUESTS = {
    "no token": ([], GREEDY, "the prompt is empty; give it at least one token"),
    "no text": ("", GREEDY, "the prompt is empty; give it at least one token"),
    "id over": ([1, 256], GREEDY, r"token id 256 is not in the vocabulary \(0 to 255\)"),
    "negative id": ([-1], GREEDY, r"token id -1 is not in the vocabulary \(0 to 255\)"),
    "NumPy id over": (np.array([999]), GREEDY, r"token id 999 is not in the vocabulary"),
    "float": ([1, 2.0], GREEDY, "token id 2.0 is not a whole number"),
    "bool": ([True], GREEDY, "token id True is not a whole number"),
    "NumPy bool": ([np.True_], GREEDY, "token id np.True_ is not a whole number"),
    "float tensor": (torch.ones(1), GREEDY, r"token id tensor\(1\.\) is not a whole number"),
    "None among ids": ([1, None], GREEDY, "token id None is not a whole number"),
    "list of text": (["To", "be"], GREEDY, "token id 'To' is not a whole number"),
    "batch of ids": ([[1, 2]], GREEDY, r"token id \[1, 2\] is not a whole number"),
    "None": (None, GREEDY, "a prompt is text or a list of token ids, not None"),
    "one id": (7, GREEDY, "a prompt is text or a list of token ids, not 7"),
    "bytes": (b"To be", GREEDY, "a prompt is text or a list of token ids, not b'To be'"),
    "half a surrogate pair": ("a\ud800", GREEDY, "the prompt is not valid Unicode"),
    "at the limit": (
        LONG,
        SamplingParams(1),
        "the prompt has 64 tokens and max_new_tokens is 1, together 65; the model has 64 positions: "
        "shorten one by 1",
    ),
    "over the limit": (LONG * 2, SamplingParams(1), "has 128 tokens .* together 129; .* shorten one by 65"),
    "over with output": ([1] * 60, SamplingParams(10), "has 60 tokens .* is 10, together 70; .* by 6"),
    "over the pool": (
        [1] * 12,
        SamplingParams(6),
        "can grow to 17 cached tokens, 5 blocks of 4; the pool has 4 a layer: shorten it or give the "
        "engine more blocks",
    ),
    "params None": ([1], None, "params must be SamplingParams, not NoneType"),
    "params dict": ([1], {"max_new_tokens": 3}, "params must be SamplingParams, not dict"),
}


def small_pool():
    return make_engine(max_blocks_per_layer=4)


WAYS = {
    "add_request": lambda engine, prompt, params: engine.add_request(prompt, params),
    "generate": lambda engine, prompt, params: engine.generate([prompt], params),
    "generate with good ones": lambda engine, prompt, params: engine.generate(
        [[1], prompt, [2]], [GREEDY, params, GREEDY]
    ),
    "stream": lambda engine, prompt, params: engine.stream(prompt, params),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("prompt", "params", "message"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_is_refused_and_nothing_is_queued(prompt, params, message, way):
    engine = small_pool()
    engine.add_request([1, 2], GREEDY)
    before = engine.stats()
    with pytest.raises(RequestError, match=message):
        WAYS[way](engine, prompt, params)
    assert engine.stats() == before


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([1, 2, 3], GREEDY, "a prompt is text or a list of token ids, not 1"),
        ([[1], [2]], [GREEDY], "there are 2 prompts but 1 SamplingParams"),
        ([[1]], [], "there are 1 prompts but 0 SamplingParams"),
        ([[1]], [None], "params must be SamplingParams, not NoneType"),
    ],
)
def test_generate_refuses_what_is_no_list_of_prompts_with_their_params(prompts, params, message):
    engine = small_pool()
    before = engine.stats()
    with pytest.raises(RequestError, match=message):
        engine.generate(prompts, params)
    assert engine.stats() == before


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.uint8)])
def test_token_ids_may_be_whole_numbers_of_any_type(kind):
    (completion,) = make_engine().generate([kind([1, 2, 3])], GREEDY)
    assert completion.prompt_token_ids == (1, 2, 3)
    assert {type(i) for i in completion.prompt_token_ids} == {int}
    assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


def test_what_fits_exactly_is_taken():
    engine = make_engine(max_blocks_per_layer=16)
    requests = [((1,) * 63, SamplingParams(1)), ((1,) * 3, SamplingParams(61))]
    completions = engine.generate(*zip(*requests, strict=True))
    assert tokens_of(completions) == [tokens_alone(*request) for request in requests]
    (completion,) = small_pool().generate([[1] * 12], SamplingParams(5))  # 16 cached tokens
    assert len(completion.token_ids) == 5


@pytest.mark.parametrize("request_id", [0, 99, None])
def test_cancelling_what_is_not_there_is_refused(request_id):
    engine = small_pool()
    engine.generate([[1]], GREEDY)  # request 0 has ended
    before = engine.stats()
    with pytest.raises(RequestError, match=f"there is no request {request_id} here; it may have ended"):
        engine.cancel(request_id)
    assert engine.stats() == before
