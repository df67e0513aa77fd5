"""OnlineScheduler: who is admitted, in what order, and that nobody starves. Policy only, no model."""

from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labkit import SamplingParams, SchedulerConfig
from labkit.engine import OnlineScheduler
from labkit.engine.request import Request


def scheduler_with(*prompt_lengths, **settings):
    scheduler = OnlineScheduler(SchedulerConfig(**settings))
    for request_id, length in enumerate(prompt_lengths):
        scheduler.add(request_of(request_id, length))
    return scheduler


def request_of(request_id, prompt_length):
    return Request(request_id, (0,) * prompt_length, SamplingParams())


def ids(requests):
    return [request.request_id for request in requests]


def always(request):
    return True


def test_a_request_leaves_a_long_queue_without_being_looked_for():
    """Or closing a server would be quadratic in those who wait."""

    class Compared(Request):
        num_compared = 0

        def __eq__(self, other):
            Compared.num_compared += 1
            return self is other

        __hash__ = Request.__hash__

    scheduler = OnlineScheduler(SchedulerConfig())
    requests = [Compared(i, (0,), SamplingParams()) for i in range(300)]
    for request in requests:
        scheduler.add(request)
    for request in reversed(requests):
        scheduler.remove(request)
    assert not scheduler.waiting and Compared.num_compared < 300


def test_a_claim_that_fails_leaves_everybody_waiting():
    scheduler = scheduler_with(1, 2, 3)

    def claim(request):
        if request.request_id == 1:
            raise ZeroDivisionError
        return True

    with pytest.raises(ZeroDivisionError):
        scheduler.admit(claim)
    assert ids(scheduler.waiting) == [0, 1, 2] and not scheduler.running


def test_the_first_is_whom_an_admission_asks_first():
    scheduler = scheduler_with(5, 2, 3, admission_policy="pack", max_batch_size=2)
    asked = []
    for _ in range(2):
        first = scheduler.first()
        scheduler.admit(lambda request: asked.append(request) or not asked[1:])
        assert asked.pop(0) is first
        asked.clear()
    assert OnlineScheduler(SchedulerConfig()).first() is None
    full = scheduler_with(1, 1, max_batch_size=1)
    full.admit(always)
    assert full.first() is None


# --- first come, first served ----------------------------------------------------------------------


def test_fifo_admits_in_order_of_arrival():
    scheduler = scheduler_with(9, 1, 5)
    assert ids(scheduler.admit(always)) == ids(scheduler.running) == [0, 1, 2]
    assert not scheduler.waiting


@pytest.mark.parametrize(
    ("settings", "admitted"),
    [
        ({"max_batch_size": 2}, [[0, 1], []]),
        ({"prefill_max_batch_size": 2}, [[0, 1], [2, 3], [4]]),
        ({"prefill_max_tokens": 8}, [[0, 1], [2], [3, 4]]),  # 3 + 5, then 10 alone, then 4 + 4
        ({"prefill_max_tokens": 7}, [[0], [1], [2], [3], [4]]),
        ({"prefill_max_tokens": 100}, [[0, 1, 2, 3, 4]]),
        ({"max_batch_size": 4, "prefill_max_batch_size": 3}, [[0, 1, 2], [3], []]),
    ],
)
def test_admission_stays_within_the_budgets(settings, admitted):
    scheduler = scheduler_with(3, 5, 10, 4, 4, **settings)
    assert [ids(scheduler.admit(always)) for _ in admitted] == admitted


@pytest.mark.parametrize("policy", ["fifo", "pack"])
def test_nobody_overtakes_a_request_that_does_not_fit(policy):
    scheduler = scheduler_with(1, 5, 2, admission_policy=policy)
    asked = []

    def claim(request):
        asked.append(request.request_id)
        return request.num_tokens < 2

    assert ids(scheduler.admit(claim)) == [0]
    assert asked == ([0, 1] if policy == "fifo" else [0, 2])
    assert ids(scheduler.waiting) == [1, 2]


def test_a_claim_is_asked_only_of_those_within_the_budgets():
    asked = []
    scheduler_with(1, 1, 1, max_batch_size=2).admit(lambda request: asked.append(request) or True)
    assert ids(asked) == [0, 1]


def test_a_request_can_be_removed_wherever_it_is():
    scheduler = scheduler_with(1, 1, 1, max_batch_size=1)
    scheduler.admit(always)
    for request in [next(iter(scheduler.waiting)), scheduler.running[0]]:
        scheduler.remove(request)
    assert ids(scheduler.waiting) == [2] and not scheduler.running


def test_whoever_is_put_back_goes_ahead_of_all_others_in_the_order_given():
    scheduler = scheduler_with(1, 1, 1, 1, 1, max_batch_size=3)
    first, second, third = scheduler.admit(always)
    scheduler.put_back([second, third])
    assert ids(scheduler.waiting) == [1, 2, 3, 4] and scheduler.running == [first]
    scheduler.put_back([first])
    assert ids(scheduler.waiting) == [0, 1, 2, 3, 4] and not scheduler.running


# --- pack ------------------------------------------------------------------------------------------


def test_pack_admits_the_cheapest_in_its_window_first():
    scheduler = scheduler_with(9, 3, 7, 1, admission_policy="pack", pack_window=3, prefill_max_batch_size=2)
    assert ids(scheduler.admit(always)) == [1, 2]
    assert ids(scheduler.admit(always)) == [3, 0]


def test_pack_admits_equal_prompts_in_order_of_arrival():
    assert ids(scheduler_with(2, 2, 2, admission_policy="pack").admit(always)) == [0, 1, 2]


def test_generated_tokens_of_preempted_requests_count_in_the_budget():
    """They are computed again: 3 and 2 tokens, then 4."""
    scheduler = scheduler_with(3, 4, 1, prefill_max_tokens=8)
    running = scheduler.admit(always)
    assert ids(running) == [0, 1, 2]
    running[0].output_token_ids += [1, 2]
    scheduler.put_back(list(scheduler.running))
    assert [ids(scheduler.admit(always)) for _ in range(2)] == [[0], [1, 2]]


def test_pack_counts_only_later_arrivals_as_passing_somebody_over():
    """Two that came before the long one go before it: that makes it no more urgent than the short one."""
    scheduler = scheduler_with(1, 1, 9, 2, admission_policy="pack", pack_window=2, prefill_max_batch_size=1)
    assert [ids(scheduler.admit(always)) for _ in range(4)] == [[0], [1], [3], [2]]


def test_pack_counts_generated_tokens_as_part_of_a_preempted_prompt():
    scheduler = scheduler_with(3, 4, admission_policy="pack")
    preempted = scheduler.admit(always)[0]
    preempted.output_token_ids += [1, 2]
    scheduler.put_back(list(scheduler.running))
    assert ids(scheduler.admit(always)) == [1, 0]


class CountingScheduler(OnlineScheduler):
    """Counts by itself how often each request saw a later one admitted."""

    def __init__(self, config):
        super().__init__(config)
        self.num_passed_over = {}

    def admit(self, claim):
        admitted = super().admit(claim)
        for request in self.waiting:
            if any(request.request_id < other.request_id for other in admitted):
                self.num_passed_over[request] = self.num_passed_over.get(request, 0) + 1
        return admitted


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
    scheduler = CountingScheduler(
        SchedulerConfig(
            admission_policy="pack",
            pack_window=window,
            max_batch_size=max_batch_size,
            prefill_max_batch_size=prefill_batch,
        )
    )
    request_ids = count()
    for arriving, num_finished, num_preempted, num_fitting in rounds:
        for length in arriving:
            scheduler.add(request_of(next(request_ids), length))
        for request in scheduler.running[:num_finished]:
            scheduler.remove(request)
        for request in scheduler.running[::-1][:num_preempted]:
            scheduler.put_back([request])
        room = iter(range(num_fitting))
        scheduler.admit(lambda request, room=room: next(room, None) is not None)
        assert max(scheduler.num_passed_over.values(), default=0) <= window
