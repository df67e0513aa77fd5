"""Lesson 05: a step that fails is undone, also where an append counts before it writes."""

from helpers import GREEDY, make_engine, run, tokens_alone, tokens_by_request

from labkit.ladder import LADDER
from labkit.learn.lesson_05.traps import CountsBeforeTheWrite, fail_a_step


def test_a_failed_step_is_undone_in_all_layers():
    """The order makes one call whole; a step of many layers takes the roll-back, whatever the order."""
    part = {"block_info": CountsBeforeTheWrite}
    engine = make_engine(options=LADDER["05"].options, parts=part, prefix_cache=False)
    prompts = [(1, 2, 3), (4, 5)]
    request_ids = [engine.add_request(p, GREEDY) for p in prompts]
    outputs = [output for _ in range(2) for output in engine.step()]
    held = next(iter(engine.scheduler.running.values())).num_tokens
    assert fail_a_step(engine, at_layer=1) == ([held + 1] * 2, [held] * 2)
    engine.check_integrity()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in request_ids] == [tokens_alone(p, GREEDY) for p in prompts]
