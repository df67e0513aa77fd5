"""Lesson 05: a step that fails is undone, whichever order an append has."""

import pytest
from helpers import GREEDY, make_engine, run, tokens_alone, tokens_by_request

from labkit.kvcache import MutableInfoBlockManager
from labkit.ladder import LADDER
from labkit.learn.lesson_05.traps import CountsBeforeTheWrite, fail_a_step

MUTABLE = LADDER["05"].options


@pytest.mark.parametrize("kind", [MutableInfoBlockManager, CountsBeforeTheWrite])
@pytest.mark.parametrize("at_layer", [0, 1])
def test_a_failed_step_is_undone_in_all_layers(kind, at_layer):
    """The order makes one call whole; a step of many layers takes the roll-back, whatever the order."""
    engine = make_engine(options=MUTABLE, parts={"block_info": kind}, prefix_cache=False)
    prompts = [(1, 2, 3), (4, 5)]
    request_ids = [engine.add_request(p, GREEDY) for p in prompts]
    outputs = [output for _ in range(2) for output in engine.step()]
    held = next(iter(engine.scheduler.running.values())).num_tokens
    at_failure, afterwards = fail_a_step(engine, at_layer)
    counted_too_early = at_layer + (kind is CountsBeforeTheWrite)
    assert at_failure == [held + 1] * counted_too_early + [held] * (2 - counted_too_early)
    assert afterwards == [held, held]
    engine.check_integrity()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in request_ids] == [tokens_alone(p, GREEDY) for p in prompts]
