"""What a wrong readback, one buffer and a failing call do."""

import pytest
import torch
from helpers import GREEDY, assert_no_block_is_lost, make_engine, tokens_alone

from labkit import LADDER
from labkit.engine.step.staging import PinnedTokens
from labkit.learn.lesson_10.arrivals import run_with_cancellations
from labkit.learn.lesson_10.traps import (
    AsksWhoRuns,
    OneBuffer,
    preempted_in_flight,
    run_with_failure,
    two_steps_in_flight,
)

ONE_BEHIND = LADDER["10"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4)]


def test_who_was_preempted_in_flight_gets_no_token_twice():
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS[:2]]
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    assert preempted_in_flight(engine, PROMPTS[:2], 8) == expected


def test_asking_who_runs_gives_a_token_twice():
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    engine.readback = AsksWhoRuns(engine.decode_step)
    first, second = preempted_in_flight(engine, PROMPTS[:2], 8)
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS[:2]]
    assert first == expected[0] and len(second) == 8
    repeated = next(i for i in range(8) if second[i] != expected[1][i])
    assert second[repeated] == second[repeated - 1]
    assert second == (*expected[1][:repeated], expected[1][repeated - 1], *expected[1][repeated:-1])


def test_asking_who_runs_is_right_where_nobody_comes_back():
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    engine.readback = AsksWhoRuns(engine.decode_step)
    completions = run_with_cancellations(engine, PROMPTS, GREEDY, {1: 3})
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS]
    assert [c.token_ids for c in completions[2:]] == expected[2:]


def test_two_buffers_hold_two_steps_and_one_does_not():
    right = PinnedTokens(2, torch.device("cpu"))
    assert two_steps_in_flight(right) == [[11, 12], [21, 22]]
    assert two_steps_in_flight(OneBuffer(2)) == [[21, 22], [21, 22]]


@pytest.mark.parametrize(
    ("what", "in_flight", "counted", "launches"),
    [("launch", "1 -> 1", 0, [0, 2]), ("read", "1 -> 0", -1, [2, 1])],
)
def test_what_a_failure_leaves(what, in_flight, counted, launches):
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    row, tokens = run_with_failure(engine, PROMPTS, GREEDY, what)
    assert tokens == [tokens_alone(prompt, GREEDY) for prompt in PROMPTS]
    before, after = map(int, row["tokens in the cache"].split(" -> "))
    assert after - before == counted
    assert row["steps in flight"] == in_flight
    assert row["the next two calls launch"] == launches and row["and hand out"] == [4, 4]
    assert_no_block_is_lost(engine)
