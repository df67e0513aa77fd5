"""OnlineScheduler: who is admitted, in what order, and that nobody starves; with a pool, and in an engine."""

from dataclasses import replace
from itertools import count
from unittest.mock import patch

import pytest
import torch
from helpers import (
    GREEDY,
    LADDER,
    assert_no_block_is_lost,
    make_engine,
    run,
    tokens_alone,
    tokens_by_request,
)
from hypothesis import example, given
from hypothesis import strategies as st

from labkit import SamplingParams
from labkit.engine import InferenceSession, OnlineScheduler
from labkit.engine.config import EIGHT_AT_A_TIME
from labkit.engine.request import Request
from labkit.errors import OutOfBlocksError
from labkit.kvcache import MutableInfoBlockManager


def make_scheduler(kind=OnlineScheduler, num_blocks=100, **settings):
    """A scheduler whose blocks have one token each."""
    manager = MutableInfoBlockManager(
        num_layers=1, num_heads=1, head_dim=1, block_size=1, max_blocks_per_layer=num_blocks
    )
    return kind(replace(EIGHT_AT_A_TIME, **settings), manager, None)


def scheduler_with(*prompt_lengths, num_blocks=100, **settings):
    scheduler = make_scheduler(num_blocks=num_blocks, **settings)
    for request_id, length in enumerate(prompt_lengths):
        scheduler.add(request_of(request_id, length))
    return scheduler


def request_of(request_id, prompt_length):
    return Request(request_id, (0,) * prompt_length, SamplingParams())


def ids(requests):
    return [request.request_id for request in requests]


def admit(scheduler):
    """The ids of the requests that one admission lets in; their prompts are in the cache then."""
    admitted = scheduler.admit()
    for request, session, _ in admitted:
        session.append_prompt(*torch.zeros(2, 1, 1, request.num_tokens, 1))
    return ids(request for request, _, _ in admitted)


def test_a_request_that_is_lost_or_that_nobody_asked_for_is_found_by_the_engines_proof():
    engine = make_engine()
    request_id = engine.add_request((1, 2, 3))
    engine.check_integrity()
    with patch.object(engine.scheduler, "waiting", {}), pytest.raises(AssertionError, match=r"but \[\] are"):
        engine.check_integrity()
    with patch.dict(engine.delivery.requests, clear=True), pytest.raises(AssertionError, match=r"\[0\] are"):
        engine.check_integrity()
    assert engine.cancel(request_id).finish_reason == "cancelled"


def test_a_request_leaves_a_long_queue_without_being_looked_for():
    """Or closing a server would be quadratic in those who wait."""

    class Compared(Request):
        num_compared = 0

        def __eq__(self, other):
            Compared.num_compared += 1
            return self is other

        __hash__ = Request.__hash__

    scheduler = make_scheduler()
    requests = [Compared(i, (0,), SamplingParams()) for i in range(300)]
    for request in requests:
        scheduler.add(request)
    for request in reversed(requests):
        scheduler.remove(request)
    assert not scheduler.waiting and Compared.num_compared < 300


@pytest.mark.parametrize("policy", ["fifo", "pack"])
def test_a_request_that_was_refused_is_asked_again_when_a_block_comes_back_or_another_is_first(policy):
    scheduler = scheduler_with(3, 4, num_blocks=6, admission_policy=policy)
    assert admit(scheduler) == [0]
    assert scheduler.may_admit()  # what did not fit was not the first: it may begin with the other's prompt
    assert admit(scheduler) == []
    assert not scheduler.may_admit()
    scheduler.add(request_of(2, 1))  # under "fifo" it is behind the one that was refused
    assert scheduler.may_admit() == (policy == "pack")
    scheduler.remove(next(iter(scheduler.running)))
    assert scheduler.may_admit()
    assert admit(scheduler) == ([1, 2] if policy == "fifo" else [2, 1])


# --- first come, first served, or the cheapest ------------------------------------------------------


FIVE = (3, 5, 10, 4, 4)
PACK = {"admission_policy": "pack"}


@pytest.mark.parametrize(
    ("prompt_lengths", "settings", "admitted"),
    [
        (FIVE, {"max_batch_size": 2}, [[0, 1], []]),
        (FIVE, {"prefill_max_batch_size": 2}, [[0, 1], [2, 3], [4]]),
        (FIVE, {"prefill_max_tokens": 8}, [[0, 1], [2], [3, 4]]),  # 3 + 5, then 10 alone, then 4 + 4
        (FIVE, {"prefill_max_tokens": 7}, [[0], [1], [2], [3], [4]]),
        (FIVE, {"prefill_max_tokens": 100}, [[0, 1, 2, 3, 4]]),
        (FIVE, {"max_batch_size": 4, "prefill_max_batch_size": 3}, [[0, 1, 2], [3], []]),
        # The cheapest of the window first.
        ((9, 3, 7, 1), PACK | {"pack_window": 3, "prefill_max_batch_size": 2}, [[1, 2], [3, 0]]),
        # Two that came before the long one go before it: it is not passed over by them.
        ((1, 1, 9, 2), PACK | {"pack_window": 2, "prefill_max_batch_size": 1}, [[0], [1], [3], [2]]),
    ],
)
def test_admission_is_in_order_and_stays_within_the_budgets(prompt_lengths, settings, admitted):
    scheduler = scheduler_with(*prompt_lengths, **settings)
    assert [admit(scheduler) for _ in admitted] == admitted


# --- pack ------------------------------------------------------------------------------------------


def test_generated_tokens_of_preempted_requests_count_in_the_budget():
    """They are computed again: 3 and 2 tokens, then 4."""
    scheduler = scheduler_with(3, 4, 1, prefill_max_tokens=8)
    assert admit(scheduler) == [0, 1, 2]
    next(iter(scheduler.running)).output_token_ids += [1, 2]
    scheduler.put_back(list(scheduler.running))
    assert [admit(scheduler) for _ in range(2)] == [[0], [1, 2]]


class CountingScheduler(OnlineScheduler):
    """Counts by itself how often each request saw a later one admitted. So many fit as `num_fitting` says, in
    a pool whose one block is taken."""

    def __init__(self, *args):
        super().__init__(*args)
        self._kv_manager.allocate_block(0, start=0)
        self.num_passed_over = {}
        self.num_fitting = 0

    def admit(self):
        admitted = super().admit()
        for request in self.waiting:
            if any(request.request_id < other.request.request_id for other in admitted):
                self.num_passed_over[request] = self.num_passed_over.get(request, 0) + 1
        return admitted

    def _growth(self, admitted):
        self.admitted = admitted
        return super()._growth(admitted)

    def _evict_for(self, growth):
        return 0 if len(self.admitted) <= self.num_fitting else 1


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 9), max_size=4),  # prompts that arrive
        st.integers(0, 3),  # how many of the running finish
        st.integers(0, 3),  # how many of the newest are preempted
        st.integers(0, 4),  # how many fit
    ),
    max_size=40,
)


@example(  # preempted requests wait ahead of one that came before them
    rounds=[([1, 1, 2, 1], 0, 0, 2), ([], 0, 0, 1), ([], 0, 1, 1), ([], 0, 2, 2)],
    window=2,
    max_batch_size=3,
    prefill_batch=2,
)
@given(
    rounds=ROUNDS, window=st.integers(1, 3), max_batch_size=st.integers(1, 4), prefill_batch=st.integers(1, 3)
)
def test_pack_passes_nobody_over_more_often_than_its_window_is_long(
    rounds, window, max_batch_size, prefill_batch
):
    scheduler = make_scheduler(
        CountingScheduler,
        num_blocks=1,
        admission_policy="pack",
        pack_window=window,
        max_batch_size=max_batch_size,
        prefill_max_batch_size=prefill_batch,
    )
    request_ids = count()
    for arriving, num_finished, num_preempted, num_fitting in rounds:
        for length in arriving:
            scheduler.add(request_of(next(request_ids), length))
        for request in list(scheduler.running)[:num_finished]:
            scheduler.remove(request)
        for request in list(scheduler.running)[::-1][:num_preempted]:
            scheduler.put_back([request])
        scheduler.num_fitting = num_fitting
        assert len(scheduler.admit()) <= num_fitting
        assert max(scheduler.num_passed_over.values(), default=0) <= window


# --- memory, at the price of one look per request, and of none while nothing can have changed ----------


@pytest.mark.parametrize("num_requests", [4, 8, 16])
def test_an_admission_looks_at_each_request_a_few_times_however_many_there_are(monkeypatch, num_requests):
    engine = make_engine(max_batch_size=32, prefill_max_batch_size=32, prefix_cache=False)
    for i in range(num_requests):
        engine.add_request((i, 2, 3), GREEDY)
    looked, blocks_to_reach = [], InferenceSession.blocks_to_reach
    monkeypatch.setattr(
        InferenceSession, "blocks_to_reach", lambda *args: looked.append(args) or blocks_to_reach(*args)
    )
    engine.step()
    assert engine.stats().running == num_requests
    assert len(looked) <= 2 * num_requests


@pytest.mark.slow
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_while_a_waiting_request_cannot_fit_steps_go_on_as_if_nobody_waited(prefix_cache):
    engine = make_engine(
        options=LADDER["10"].options, max_blocks_per_layer=16, block_size=4, prefix_cache=prefix_cache
    )
    long = SamplingParams(50, stop_on_eos=False)
    first = engine.add_request((1, 2, 3), long)
    second = engine.add_request(tuple(range(50, 55)), long)
    outputs = [output for _ in range(2) for output in engine.step()]
    assert (engine.stats().running, engine.stats().waiting) == (2, 0)
    third = engine.add_request(tuple(range(100, 155)), SamplingParams(4))  # needs 14 blocks of 16
    outputs += engine.step()
    step = engine.decode_step
    with patch.object(step, "launch") as launch, patch.object(step, "start", wraps=step.start) as start:
        for _ in range(12):
            outputs += engine.step()
    assert engine.stats().waiting == 1
    assert (launch.call_count, start.call_count) == (0, 12)
    handed_out = tokens_by_request([*outputs, *run(engine)])
    assert handed_out[first] == tokens_alone((1, 2, 3), long)
    assert handed_out[second] == tokens_alone(tuple(range(50, 55)), long)
    assert handed_out[third] == tokens_alone(tuple(range(100, 155)), SamplingParams(4))
    assert_no_block_is_lost(engine)


def test_a_prompt_that_has_just_been_computed_lets_its_twin_in_without_a_block_coming_back():
    """The second of two equal prompts does not fit beside the first, but shares its blocks afterwards."""
    engine = make_engine(max_blocks_per_layer=5, block_size=4)
    prompt = tuple(range(12))
    ids = [engine.add_request(prompt, SamplingParams(1)) for _ in range(2)]
    outputs = list(engine.step())
    assert (engine.stats().running, engine.stats().waiting) == (0, 1)
    outputs += run(engine)
    assert tokens_by_request(outputs) == {i: tokens_alone(prompt, SamplingParams(1)) for i in ids}
    assert engine.stats().counters.reused_tokens == 12


# --- to join while others decode -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "admitted"),
    [(1, [0]), (3, [0]), (4, [0, 1]), (8, [0, 1]), (9, [0, 1, 2]), (100, [0, 1, 2, 3])],
)
def test_requests_join_until_their_tokens_fill_the_room(room, admitted):
    scheduler = scheduler_with(3, 5, 10, 2)
    assert ids(each.request for each in scheduler.admit(room)) == admitted == ids(scheduler.joining)
    assert not scheduler.running
    for request, joining in scheduler.joining.items():
        assert joining.session.num_tokens == joining.num_left == request.num_tokens
    num_blocks = sum(request.num_tokens for request in scheduler.joining)
    assert scheduler._kv_manager.num_free_blocks == 100 - num_blocks
    scheduler._kv_manager.check_integrity(scheduler.sessions)


def test_those_who_join_count_as_served_and_keep_a_block_for_their_next_token():
    scheduler = scheduler_with(3, 2, 4, max_batch_size=2)
    scheduler.admit(100)
    assert ids(scheduler.joining) == [0, 1] and not scheduler.may_admit() and not scheduler.admit(100)
    scheduler = scheduler_with(3, 4, num_blocks=7)
    assert ids(each.request for each in scheduler.admit(1)) == [0]
    assert not scheduler.admit(1)  # 4 blocks are free; one of them is for the first one's next token
    scheduler = scheduler_with(3, 4, num_blocks=8)
    scheduler.admit(1)
    assert ids(each.request for each in scheduler.admit(1)) == [1]


def test_those_who_join_come_behind_those_who_run_and_make_way_before_them_the_newest_first():
    scheduler = scheduler_with(1, 2, 3, 4)
    scheduler.admit(100)
    scheduler.join(list(scheduler.joining)[:2])
    assert ids(scheduler.requests) == [0, 1, 2, 3]
    for waiting in ([3], [2, 3], [1, 2, 3]):
        scheduler.preempt_newest()
        assert ids(scheduler.waiting) == waiting
    scheduler.admit(100)
    scheduler.put_back(list(scheduler.joining)[1:])
    assert ids(scheduler.requests) == [0, 1, 2, 3] and ids(scheduler.waiting) == [2, 3]


@pytest.mark.parametrize("rung", ["00", "13", "14"])
def test_a_cache_that_lets_no_block_go_is_named_and_the_engine_goes_on(rung, monkeypatch):
    """The engine waited for a block that nobody would give back, for ever."""
    engine = make_engine(options=LADDER[rung].options, max_blocks_per_layer=6)
    (first,) = engine.generate([range(1, 13)], GREEDY)
    with monkeypatch.context() as patched:
        patched.setattr(engine.prefix_cache, "evict_one", lambda: False)
        with pytest.raises(OutOfBlocksError, match="would wait for ever: no request runs, and the prefix"):
            engine.generate([range(13, 25)], GREEDY)
        assert not engine.has_work
    second = engine.generate([range(13, 25)], GREEDY)[0]
    assert second.token_ids == tokens_alone(tuple(range(13, 25)), GREEDY) != first.token_ids
