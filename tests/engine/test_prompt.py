"""From prompts to token ids, and from lists of prompts to pairs with their params."""

import pytest
from helpers import GREEDY, SEEDED, ByteTokenizer

from labkit.engine.prompt import check_length, encode, prompts_with_params, read, size_of, token_ids_of
from labkit.errors import RequestError

TOKENIZER = ByteTokenizer()


def test_a_text_is_encoded_and_a_list_is_taken_as_it_is():
    assert token_ids_of("To be", 3, TOKENIZER, limit=8) == (84, 111, 32, 98, 101)
    assert token_ids_of(iter([3, 1, 2]), 3, TOKENIZER, limit=8) == (3, 1, 2)


def test_a_text_is_encoded_as_far_as_it_must_be_read():
    """16 characters for each position, doubled until there are more tokens than twice the positions."""
    assert encode("a" * 64, TOKENIZER, limit=4) == ((97,) * 64, True)
    assert encode("a" * 65, TOKENIZER, limit=4) == ((97,) * 64, False)


@pytest.mark.parametrize(
    ("num_tokens", "is_all", "said"), [(6, True, "together 9;"), (6, False, "9 or more;")]
)
def test_a_prompt_that_is_too_long_is_refused_with_by_how_much(num_tokens, is_all, said):
    check_length(5, 3, limit=8)
    with pytest.raises(RequestError, match=said) as refused:
        check_length(num_tokens, 3, limit=8, is_all=is_all)
    assert str(refused.value).endswith("shorten one by 1" + ("" if is_all else " or more"))


def test_params_are_given_for_all_prompts_or_for_each():
    assert list(prompts_with_params(["a", "b"], GREEDY)) == [("a", GREEDY), ("b", GREEDY)]
    assert list(prompts_with_params(["a", "b"], [GREEDY, SEEDED])) == [("a", GREEDY), ("b", SEEDED)]
    with pytest.raises(RequestError, match="there are 2 prompts but 1 SamplingParams"):
        prompts_with_params(["a", "b"], [GREEDY])


def test_what_raises_while_it_is_read_is_refused_by_name():
    def broken():
        yield 1
        raise ZeroDivisionError("half way")

    items = read("the prompt", broken())
    assert next(items) == 1
    with pytest.raises(RequestError, match="the prompt cannot be read: ZeroDivisionError"):
        next(items)
    assert size_of("prompts", "abc") == 3
