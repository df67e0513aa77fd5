"""Lesson 05's traps: a record that two blocks share, the two orders, and a step that fails."""

import pytest
from helpers import GREEDY, make_engine, run, tokens_alone, tokens_by_request

from labkit import SamplingParams
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager
from labkit.ladder import LADDER
from labkit.learn.lesson_05.traps import (
    LEFT_BEHIND,
    CountsBeforeTheWrite,
    SharesTheRecord,
    fail_a_step,
    fail_an_append,
    stored_after_retry,
)

MUTABLE = LADDER["05"].options
both_kinds = pytest.mark.parametrize("kind", [KVBlockManager, MutableInfoBlockManager])


# --- one record, two blocks ----------------------------------------------------------------------------


def test_a_shared_record_shows_when_a_cached_prompt_is_used_again_and_only_then():
    def twice(kind, prompt):
        engine = make_engine(options=MUTABLE, parts={"block_info": kind})
        params = SamplingParams(12, stop_on_eos=False)
        return engine, [engine.generate([prompt], params)[0].token_ids for _ in range(2)]

    prompt = (1, 2, 3, 4, 5)
    _, (right, again) = twice(MutableInfoBlockManager, prompt)
    assert right == again
    engine, (first, second) = twice(SharesTheRecord, prompt)
    assert first == right and second != right
    with pytest.raises(AssertionError, match="is booked as"):
        engine.check_integrity()
    engine, (first, second) = twice(SharesTheRecord, (1, 2, 3, 4))  # a full last block is not copied
    assert first == second
    engine.check_integrity()


# --- the two orders ----------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("failure", ["write", "pool"])
def test_a_failed_append_leaves_the_package_s_books_whole(kind, failure):
    after = fail_an_append(kind, failure)
    assert after["bookkeeping"] == "whole" and after["counted"] == after["written"]


@pytest.mark.parametrize(("failure", "counted"), [("write", [3, 3]), ("pool", [3, 4])])
def test_the_write_up_s_order_counts_what_was_not_written(failure, counted):
    after = fail_an_append(CountsBeforeTheWrite, failure)
    assert after["bookkeeping"].startswith("off") and after["counted"] == counted


def test_a_retry_leaves_a_hole_under_the_write_up_s_order_only():
    assert stored_after_retry(KVBlockManager) == [1, 2, 3]
    assert stored_after_retry(MutableInfoBlockManager) == [1, 2, 3]
    assert stored_after_retry(CountsBeforeTheWrite) == [1, 2, LEFT_BEHIND, 3]


def test_the_write_up_s_order_is_right_as_long_as_nothing_fails():
    """What is shown to break is the order, and nothing else."""
    prompts = [(1, 2, 3), (4, 5), (6, 7, 8, 9), (1, 2, 3)]
    engine = make_engine(options=MUTABLE, parts={"block_info": CountsBeforeTheWrite})
    completions = engine.generate(prompts, GREEDY)
    assert [c.token_ids for c in completions] == [tokens_alone(p, GREEDY) for p in prompts]
    engine.check_integrity()


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


def test_a_step_that_does_not_fail_is_said_so_and_the_write_is_put_back():
    engine = make_engine(options=MUTABLE)
    engine.add_request((1, 2, 3), GREEDY)
    engine.step()
    working = engine.kv_manager.kv_write
    with pytest.raises(ValueError, match="did not write in layer 9"):
        fail_a_step(engine, 9)
    assert engine.kv_manager.kv_write is working
