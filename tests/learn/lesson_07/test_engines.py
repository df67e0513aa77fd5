"""Lesson 07: its engines."""

from helpers import GREEDY, make_engine

from labkit import LADDER
from labkit.learn.lesson_07 import engines

BELOW, THIS = LADDER["06"].options, LADDER["07"].options
ENGINES = {"rung 06": BELOW, "halfway": engines.HALFWAY, "rung 07": THIS}


def test_halfway_is_between_the_rungs():
    halfway = engines.HALFWAY
    assert halfway.layer_tables == THIS.layer_tables and halfway.kv_write == BELOW.kv_write
    outputs = [make_engine(options=o).generate([(1, 2, 3)], GREEDY)[0].token_ids for o in ENGINES.values()]
    assert outputs[0] == outputs[1] == outputs[2]
