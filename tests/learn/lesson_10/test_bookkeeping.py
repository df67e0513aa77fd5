"""Functions that a step calls."""

import numpy as np
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.lesson_10.bookkeeping import bookkeeping_calls

AT_ONCE, ONE_BEHIND = LADDER["09"].options, LADDER["10"].options


def steady(options, batch_size: int):
    engine = make_engine(options=options, prefix_cache=False, block_size=64)
    for _ in range(batch_size):
        engine.add_request((1, 2, 3), SamplingParams(30, stop_on_eos=False))
    for _ in range(4):
        engine.step()
    return engine


def test_bookkeeping_grows_with_the_batch_on_rung_09_and_not_on_rung_10():
    at_once, one_behind = (
        [bookkeeping_calls(steady(options, B)) for B in (2, 4, 8)] for options in (AT_ONCE, ONE_BEHIND)
    )
    assert len(set(one_behind)) == 1
    two_more, four_more = np.diff(at_once)
    assert four_more == 2 * two_more > 0
