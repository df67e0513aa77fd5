"""A sampler that takes row b's parameters from slot b: right until a request leaves."""

import pytest

from labkit import CacheConfig, SamplingParams, lab
from labkit.learn.lesson_12.traps import draws_by_row, last_alone, last_of

FIRST = SamplingParams(4, stop_on_eos=False)
LAST = SamplingParams(12, temperature=0.8, top_p=0.9, seed=5, stop_on_eos=False)
ASKED = {"O": FIRST, "To be, or not to be": LAST}


@pytest.mark.slow
def test_the_last_request_gets_other_tokens_once_the_first_has_left():
    here = lab.start("12")
    cache = CacheConfig(prefix_cache=False)
    alone = last_alone(here.build(cache=cache), ASKED)
    assert last_of(here.build(cache=cache), ASKED) == alone
    wrong = last_of(here.build(sampler=draws_by_row, cache=cache), ASKED)
    assert wrong[:4] == alone[:4] and wrong != alone
