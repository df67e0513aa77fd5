"""Engines of rungs 05 and 06 that have prefilled three requests and are about to decode."""

from helpers import make_engine

from labkit import SamplingParams
from labkit.ladder import LADDER

BELOW, THIS = LADDER["05"].options, LADDER["06"].options
PROMPTS = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10)]
LONG = SamplingParams(max_new_tokens=20)


def prefilled(options, prompts=PROMPTS, params=LONG, **settings):
    engine = make_engine(options=options, **{"prefix_cache": False, **settings})
    for prompt in prompts:
        engine.add_request(prompt, params)
    engine.step()
    return engine
