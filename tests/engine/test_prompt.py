"""Prompts and their parameters: what is none is refused, and nothing is queued."""

import collections
import itertools

import numpy as np
import pytest
import torch
from bad_values import Made, fresh, refused
from helpers import CONFIG, GREEDY, ByteTokenizer, make_engine, tokens_alone, tokens_of
from pandas import DataFrame
from streaming_helpers import nobody_waits_for_ever  # noqa: F401  (an autouse fixture)

from labkit import SamplingParams
from labkit.errors import RequestError
from labkit.model.tokenizer import first_token_ids

# --- prompts ---------------------------------------------------------------------------------------


@pytest.fixture
def engine():
    """An engine with a request that waits; at the end, it must be the one that it was."""
    engine = make_engine()
    engine.add_request((1, 2, 3), GREEDY)
    before = engine.stats()
    yield engine
    assert engine.stats() == before and engine.has_work
    engine.check_integrity()
    assert engine.add_request((7,), GREEDY) == 1  # no id was given away


def test_of_a_generator_no_more_is_read_than_the_model_has_positions(engine):
    ids = itertools.count()
    with refused(RequestError, "has 64 tokens or more .* together 72 or more; .* by 8 or more"):
        engine.add_request(ids, GREEDY)
    assert next(ids) <= CONFIG.n_positions + 1


def test_of_a_text_far_too_long_the_beginning_is_encoded(monkeypatch, engine):
    lengths = []

    def encode(self, text):
        lengths.append(len(text))
        return [97] * (len(text) // 20)  # longer tokens than it expects

    monkeypatch.setattr(ByteTokenizer, "encode", encode)
    with refused(RequestError, "the prompt has .* tokens or more and max_new_tokens is 8, tog"):
        engine.add_request("a" * 10**6, GREEDY)
    assert sum(lengths) < 10**4


def test_a_text_of_few_tokens_may_be_long(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: [97] * len(text.split()))
    engine = make_engine()
    (completion,) = engine.generate(["a" * 10**5 + " b" * 10], GREEDY)
    assert completion.prompt_token_ids == (97,) * 11


GOOD_PROMPTS = {
    "a tuple": (1, 2, 3),
    "a range": range(1, 4),
    "a generator": Made(lambda: (i for i in (1, 2, 3))),
    "values of a dict": {"a": 1, "b": 2, "c": 3}.values(),
    "a tensor": torch.tensor([1, 2, 3], dtype=torch.int16),
    "an array of objects": np.array([1, 2, 3], dtype=object),
    "numbers of four kinds": [np.uint8(1), torch.tensor(2), 3],
    "0-d arrays": [np.array(1), np.array(2), np.array(3)],
    "text": "\x01\x02\x03",
    "NumPy's text": np.str_("\x01\x02\x03"),
}


@pytest.mark.parametrize("prompt", GOOD_PROMPTS.values(), ids=GOOD_PROMPTS)
def test_whole_numbers_in_their_order_are_a_prompt(prompt):
    (completion,) = make_engine().generate([fresh(prompt)], GREEDY)
    assert completion.prompt_token_ids == (1, 2, 3)
    assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, collections.deque])
def test_prompts_may_be_rows(kind):
    completions = make_engine().generate(kind([[1, 2, 3], [4, 5, 6]]), GREEDY)
    assert [c.prompt_token_ids for c in completions] == [(1, 2, 3), (4, 5, 6)]


def test_what_only_looks_like_prompts_is_refused(engine):
    with refused(RequestError, "prompts must be a list of prompts, not"):
        engine.generate(DataFrame({"prompt": ["To be"], "answer": ["or not"]}), GREEDY)
    with refused(RequestError, "is not a whole number"):
        engine.generate([np.array([5, 6], "timedelta64[ns]")], GREEDY)


@pytest.mark.parametrize("params", [None, "x", {}, 5])
def test_params_of_no_prompt_are_checked_too(engine, params):
    with refused(RequestError, "params must be SamplingParams|0 prompts but 1 SamplingParams"):
        engine.generate([], params)
    assert engine.generate([], GREEDY) == engine.generate([], []) == []


# (prompt, params, what is said); the model has 64 positions, the pool 4 blocks of 4 tokens.
REFUSED = [
    (
        [1] * 64,
        SamplingParams(1),
        "the prompt has 64 tokens and max_new_tokens is 1, together 65; the engine has 64 positions: "
        "shorten one by 1",
    ),
    (
        [1] * 12,
        SamplingParams(6),
        "can grow to 17 cached tokens, 5 blocks of 4; the pool has 4 a layer: shorten it or give the "
        "engine more blocks",
    ),
]


@pytest.mark.parametrize(("prompt", "params", "message"), REFUSED)
def test_a_bad_request_is_refused_with_what_to_do(prompt, params, message):
    with pytest.raises(RequestError, match=message):
        make_engine(max_blocks_per_layer=4).add_request(prompt, params)


def test_what_fits_exactly_is_taken():
    engine = make_engine(max_blocks_per_layer=16)
    requests = [((1,) * 63, SamplingParams(1)), ((1,) * 3, SamplingParams(61))]
    completions = engine.generate(*zip(*requests, strict=True))
    assert tokens_of(completions) == [tokens_alone(*request) for request in requests]
    (completion,) = make_engine(max_blocks_per_layer=4).generate([[1] * 12], SamplingParams(5))  # 16 cached
    assert len(completion.token_ids) == 5


# --- cancel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, torch.tensor])
def test_an_id_may_be_a_whole_number_of_any_type(kind):
    engine = make_engine()
    assert engine.cancel(kind(engine.add_request([1], GREEDY))).request_id == 0
    assert not engine.has_work


TOKENIZER = ByteTokenizer()


def test_a_text_is_encoded_as_far_as_it_must_be_read():
    """16 characters for each position, doubled until there are more tokens than twice the positions."""
    assert first_token_ids("a" * 64, TOKENIZER, limit=4) == ([97] * 64, True)
    assert first_token_ids("a" * 65, TOKENIZER, limit=4) == ([97] * 64, False)


def test_a_list_that_has_other_items_than_its_len_says_is_refused(engine):
    class Wrong(list):
        def __len__(self):
            return 2

    for prompts, params in (([(1,), (2,)], Wrong([GREEDY])), (Wrong([(1,)]), [GREEDY] * 2)):
        with pytest.raises(RequestError, match=r"there are \d prompts but \d SamplingParams"):
            engine.generate(prompts, params)
