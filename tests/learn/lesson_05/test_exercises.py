"""Lesson 05: the solutions of its exercises say what the package does."""

from itertools import pairwise

import pytest
from helpers import GREEDY, make_engine

from labkit.bench.cost_cards import count_calls
from labkit.ladder import LADDER
from labkit.learn.lesson_05.exercises import RECORDS_CREATED

REPLACED, MUTABLE = LADDER["04"].options, LADDER["05"].options


@pytest.mark.parametrize("options", [REPLACED, MUTABLE], ids=["replaced", "mutable"])
def test_the_formula_counts_what_steps_of_an_engine_create(options):
    """Prompts of all lengths, one of them shared: steps of every mixture of paths."""
    engine = make_engine(options=options)
    for prompt in ((1, 2, 3), (1, 2, 3), (4, 5), tuple(range(6, 14))):
        engine.add_request(prompt, GREEDY)
    engine.step()  # the prefill
    layers = engine.kv_manager.num_layers
    readings = [engine.stats().append_paths]
    created = []
    for _ in range(6):
        created.append(count_calls(engine)[1])
        readings.append(engine.stats().append_paths)
    met = set()
    for (before, after), count in zip(pairwise(readings), created, strict=True):
        paths = {p: (after.get(p, 0) - before.get(p, 0)) // layers for p in ("in_place", "boundary")}
        paths["copy_on_write"] = (after.get("copy_on_write", 0) - before.get("copy_on_write", 0)) // layers
        met |= {path for path, number in paths.items() if number}
        assert RECORDS_CREATED.solution(options.block_info, layers, **paths) == count
    assert met == {"in_place", "boundary", "copy_on_write"}
