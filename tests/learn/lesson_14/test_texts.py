"""Lesson 14's questions: each another, behind the same beginning."""

import pytest

from labkit import load_model
from labkit.learn.lesson_14.texts import (
    SYSTEM,
    TURNS,
    before_the_question,
    behind_system,
    behind_the_hour,
    questions,
)


@pytest.fixture(scope="module")
def tokenizer():
    return load_model("data/tiny-gpt2").tokenizer


def test_questions_are_all_different_and_there_are_64():
    assert len(set(questions())) == 64 and questions(2) == ["What is love?", "What is honour?"]
    with pytest.raises(ValueError, match="there are 64 questions, and 65 were asked for"):
        questions(65)
    assert len(set(TURNS)) == 10


def test_a_system_prompt_is_in_front_unless_the_hour_is(tokenizer):
    asked, system = questions(3), tokenizer.encode(SYSTEM)
    plain, hour_first, hour_last = (
        make(tokenizer, asked) for make in (behind_system, behind_the_hour, before_the_question)
    )
    for prompts in (plain, hour_last):
        assert all(prompt[: len(system)] == tuple(system) for prompt in prompts)
    assert len({prompt[:16] for prompt in hour_first}) == 3
    assert tokenizer.decode(hour_first[1]) == "It is 9 of the clock and 1. " + SYSTEM + asked[1]
    assert tokenizer.decode(hour_last[2]) == SYSTEM + "It is 9 of the clock and 2. " + asked[2]
