"""Requests that join, end and are cancelled get what they have to."""

import pytest
from helpers import GREEDY, assert_no_block_is_lost, make_engine, tokens_alone

from labkit import LADDER
from labkit.learn.lesson_10.arrivals import (
    calls_until_tokens,
    expected_tokens,
    run_with_cancellations,
    until_end,
)

AT_ONCE, ONE_BEHIND = LADDER["09"].options, LADDER["10"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4)]


def test_tokens_until_the_end():
    assert until_end([3, 0, 4, 0], 0) == (3, 0)
    assert until_end([3, 4], 0) == (3, 4)


def test_a_joiner_gets_its_second_token_one_call_later():
    calls = {o: calls_until_tokens(make_engine(options=o), 4) for o in (AT_ONCE, ONE_BEHIND)}
    assert calls == {AT_ONCE: [1, 2, 3], ONE_BEHIND: [1, 3, 4]}


@pytest.mark.parametrize("options", [AT_ONCE, ONE_BEHIND], ids=["at once", "one behind"])
def test_the_cancelled_get_a_beginning_and_the_others_all(options):
    engine = make_engine(options=options, max_batch_size=3, prefix_cache=False)
    completions = run_with_cancellations(engine, PROMPTS, GREEDY, {0: 3, 3: 4, 1: 400})
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS]
    reasons = [str(c.finish_reason) for c in completions]
    assert reasons == ["cancelled", "length", "length", "cancelled"]
    for completion, tokens in zip(completions, expected, strict=True):
        assert completion.token_ids == tokens[: len(completion.token_ids)]
    assert len(completions[0].token_ids) == 3
    assert_no_block_is_lost(engine)


def test_references_end_where_the_text_ends(tiny):
    (dense,), (transformers,) = expected_tokens(tiny, ["Exit"], 40).values()
    assert dense == transformers and dense[-1] == tiny.tokenizer.eos_token_id
    assert len(dense) < 40 and tiny.tokenizer.eos_token_id not in dense[:-1]
