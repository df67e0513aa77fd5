"""Lesson 07's trap: with one request nothing shows, with two on one block the first one's text goes wrong."""

import pytest

from labkit import SamplingParams, lab
from labkit.kvcache import OneTableBlockManager
from labkit.learn.lesson_07.traps import ForgetsTheCopy

PROMPT = "JULIET:\nO"


def text_of_the_first(manager, others):
    engine = lab.start("07").build(layer_tables=manager)
    engine.generate([PROMPT], SamplingParams(max_new_tokens=1))
    first = engine.add_request(PROMPT, SamplingParams(12, stop_on_eos=False))
    for _ in range(others):
        engine.add_request(PROMPT, SamplingParams(12, temperature=1.0, seed=1))
    made = []
    while engine.has_work:
        made += [output.token_id for output in engine.step() if output.request_id == first]
    return made


@pytest.mark.parametrize(("others", "is_right"), [(0, True), (1, False)])
def test_a_forgotten_copy_shows_when_two_share(others, is_right):
    right, wrong = (text_of_the_first(m, others) for m in (OneTableBlockManager, ForgetsTheCopy))
    assert (right == wrong) is is_right
