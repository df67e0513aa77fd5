"""Lesson 10: two workers, who gets what is on its way, what breaks, and the recorded runs."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import GREEDY, assert_no_block_is_lost, make_engine, tokens_alone
from hypothesis import assume, given
from hypothesis import strategies as st
from made_records import (
    card_of,
    card_record,
    host_time_of,
    host_time_record,
    record_of,
    run_of,
    runs_record,
    traced,
)

from labkit import LADDER, SamplingParams
from labkit.engine.step.staging import PinnedTokens
from labkit.learn import lesson_10
from labkit.learn.lesson_10 import (
    Access,
    AsksWhoRuns,
    OneBuffer,
    StepWork,
    simulate,
    step_time,
)
from labkit.results.comparison import MIN_ROUNDS
from labkit.show import draw_idle, draw_schedules
from labkit.watch import Flights

AT_ONCE, ONE_BEHIND = LADDER["09"].options, LADDER["10"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4)]


# --- two workers on one clock ------------------------------------------------------------------------


times = st.floats(1, 1000)
works = st.builds(StepWork, times, times, times)


@given(work=works)
def test_read_at_once_takes_the_sum_and_one_behind_the_larger(work):
    assert step_time(work) == pytest.approx(work.host + work.gpu)
    assert step_time(work, ahead=1) == pytest.approx(max(work.host, work.gpu))


@pytest.mark.slow
@given(work=works)
def test_further_behind_gains_nothing_more(work):
    assume(abs(work.host - work.gpu) > 0.05 * work.launch)
    assert step_time(work, ahead=2) == pytest.approx(max(work.host, work.gpu))


@given(work=works)
def test_a_clock_that_waits_for_the_gpu_hides_a_part_of_what_is_gained(work):
    assert step_time(work, synchronize=True) == pytest.approx(work.host + work.gpu)
    synchronized = step_time(work, ahead=1, synchronize=True)
    assert synchronized == pytest.approx(work.launch + max(work.gpu, work.accept))
    assert synchronized >= step_time(work, ahead=1) - 1e-6


@given(work=works, ahead=st.integers(0, 3))
def test_a_worker_does_one_thing_at_a_time_and_reads_what_is_there(work, ahead):
    schedule = simulate(work, 6, ahead)
    for lane in ("host", "GPU"):
        boxes = sorted(busy for busy in schedule if busy.lane == lane)
        in_time = sorted(boxes, key=lambda busy: busy.start)
        assert all(one.end <= other.start + 1e-6 for one, other in pairwise(in_time))
    of = {(busy.work, busy.step): busy for busy in schedule}
    assert len(of) == len(schedule) == 18
    for step in range(6):
        assert of["launch", step].end <= of["gpu", step].start
        assert of["gpu", step].end <= of["accept", step].start


def test_the_schedules_are_drawn_on_one_clock():
    work = StepWork(50, 300, 50)
    fig = draw_schedules({"a": simulate(work, 4), "b": simulate(work, 4, 1)}, {"a": "a note"}, end=900)
    first, second = fig.axes
    assert first.get_xlim() == second.get_xlim() == (0, 900)
    assert [axes.get_title(loc="left") for axes in fig.axes] == ["a: a note", "b"]
    boxes = [patch for patch in second.patches if patch.get_x() or patch.get_width() < 900]
    assert max(patch.get_x() + patch.get_width() for patch in boxes) <= 900


# --- what is on its way ------------------------------------------------------------------------------


def test_nothing_was_watched():
    assert Flights().tokens_to_nobody == 0 and Flights().calls_that_waited == []


# --- requests that stop, leave and come back ---------------------------------------------------------


def test_tokens_until_the_end():
    assert lesson_10.until_end([3, 0, 4, 0], 0) == (3, 0)
    assert lesson_10.until_end([3, 4], 0) == (3, 4)


def test_a_joiner_gets_its_second_token_one_call_later():
    calls = {o: lesson_10.calls_until_tokens(make_engine(options=o), 4) for o in (AT_ONCE, ONE_BEHIND)}
    assert calls == {AT_ONCE: [1, 2, 3], ONE_BEHIND: [1, 3, 4]}


@pytest.mark.parametrize("options", [AT_ONCE, ONE_BEHIND], ids=["at once", "one behind"])
def test_the_cancelled_get_a_beginning_and_the_others_all(options):
    engine = make_engine(options=options, max_batch_size=3, prefix_cache=False)
    completions = lesson_10.run_with_cancellations(engine, PROMPTS, GREEDY, {0: 3, 3: 4, 1: 400})
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS]
    reasons = [str(c.finish_reason) for c in completions]
    assert reasons == ["cancelled", "length", "length", "cancelled"]
    for completion, tokens in zip(completions, expected, strict=True):
        assert completion.token_ids == tokens[: len(completion.token_ids)]
    assert len(completions[0].token_ids) == 3
    assert_no_block_is_lost(engine)


def test_who_was_preempted_in_flight_gets_no_token_twice():
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS[:2]]
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    assert lesson_10.preempted_in_flight(engine, PROMPTS[:2], 8) == expected


def test_asking_who_runs_gives_a_token_twice():
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    engine.readback = AsksWhoRuns(engine.decode_step)
    first, second = lesson_10.preempted_in_flight(engine, PROMPTS[:2], 8)
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS[:2]]
    assert first == expected[0] and len(second) == 8
    repeated = next(i for i in range(8) if second[i] != expected[1][i])
    assert second[repeated] == second[repeated - 1]
    assert second == (*expected[1][:repeated], expected[1][repeated - 1], *expected[1][repeated:-1])


def test_asking_who_runs_is_right_where_nobody_comes_back():
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    engine.readback = AsksWhoRuns(engine.decode_step)
    completions = lesson_10.run_with_cancellations(engine, PROMPTS, GREEDY, {1: 3})
    expected = [tokens_alone(prompt, GREEDY) for prompt in PROMPTS]
    assert [c.token_ids for c in completions[2:]] == expected[2:]


# --- steps in a row ----------------------------------------------------------------------------------


def steady(options, batch_size: int):
    engine = make_engine(options=options, prefix_cache=False, block_size=64)
    for _ in range(batch_size):
        engine.add_request((1, 2, 3), SamplingParams(30, stop_on_eos=False))
    for _ in range(4):
        engine.step()
    return engine


def test_bookkeeping_grows_with_the_batch_on_rung_09_and_not_on_rung_10():
    at_once, one_behind = (
        [lesson_10.bookkeeping_calls(steady(options, B)) for B in (2, 4, 8)]
        for options in (AT_ONCE, ONE_BEHIND)
    )
    assert len(set(one_behind)) == 1
    two_more, four_more = np.diff(at_once)
    assert four_more == 2 * two_more > 0


def test_the_streaming_table_has_the_median_of_the_runs():
    def run(seconds: float, *gaps: int):
        return "10", run_of(seconds=seconds, new_tokens=(50, 50), gaps_us=gaps * 2)

    record = runs_record([run(1.0, *[1000] * 98, 3000, 3000), run(2.0, 2000), run(4.0, 4000)])
    (row,) = lesson_10.streaming_table({"a": record}).to_dict("records")
    assert row == {"tokens/s": "50", "ITL p50 (ms)": 2.0, "ITL p99 (ms)": 3.0, "p99 / p50": 1.0, "runs": 3}


def test_slow_gaps_are_those_of_more_than_twice_the_median():
    gaps = [1000, 1000, 2001, 1000] * 2 + [1000, 2000, 4000, 1000]
    record = runs_record([("10", run_of(new_tokens=(5, 5, 5), gaps_us=gaps))])
    (row,) = lesson_10.slow_gaps(record).reset_index().to_dict("records")
    assert row == {
        "run": 1,
        "before token": "4 of 5",
        "streams": 3,
        "pause, median (ms)": 2.0,
        "median gap (ms)": 1.0,
    }


# --- what breaks -------------------------------------------------------------------------------------


def test_one_stream_has_one_order_and_two_have_some_that_are_wrong():
    old, new = [Access("A", "writes")], [Access("B", "writes"), Access("B", "reads")]
    assert lesson_10.what_is_read([[*old, *new]]) == {"B reads B's number": 1}
    assert lesson_10.what_is_read([old, new]) == {"B reads B's number": 2, "B reads A's number": 1}
    assert len(list(lesson_10.orders([old * 2, new * 2]))) == 15  # 6 over 2


def test_two_buffers_hold_two_steps_and_one_does_not():
    right = PinnedTokens(2, torch.device("cpu"))
    assert lesson_10.two_steps_in_flight(right) == [[11, 12], [21, 22]]
    assert lesson_10.two_steps_in_flight(OneBuffer(2)) == [[21, 22], [21, 22]]


@pytest.mark.parametrize(
    ("what", "in_flight", "counted", "launches"),
    [("launch", "1 -> 1", 0, [0, 2]), ("read", "1 -> 0", -1, [2, 1])],
)
def test_what_a_failure_leaves(what, in_flight, counted, launches):
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    row, tokens = lesson_10.run_with_failure(engine, PROMPTS, GREEDY, what)
    assert tokens == [tokens_alone(prompt, GREEDY) for prompt in PROMPTS]
    before, after = map(int, row["tokens counted"].split(" -> "))
    assert after - before == counted
    assert row["steps in flight"] == in_flight
    assert row["the next two calls launch"] == launches and row["and hand out"] == [4, 4]
    assert_no_block_is_lost(engine)


# --- the recorded runs -------------------------------------------------------------------------------


IDLE = record_of(
    "decode_kernels",
    [
        traced("09", 1, 200.0, 100.0),
        traced("09", 64, 800.0, 500.0),
        traced("09", 64, 802.0, 500.0),
        traced("10", 64, 510.0, 500.0),
    ],
)


def test_idle_times_by_rung_and_batch_size():
    steps = IDLE.steps
    assert steps["09", 64] == traced("09", 64, 801, 500)
    assert steps["09", 1].idle_share == 0.5 and steps["09", 1].idle_us == 100
    work = lesson_10.work_of(steps["09", 64])
    assert (work.gpu, work.host) == (500, 301)
    fig = draw_idle(list(steps.values()))
    (axes,) = fig.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == [
        "B = 1, rung 09",
        "B = 64, rung 09",
        "B = 64, rung 10",
    ]
    assert [t.get_text() for t in axes.texts if "idle" in t.get_text()] == [
        "idle 50.0 %",
        "idle 37.6 %",
        "idle 2.0 %",
    ]


def test_a_step_is_expected_to_take_the_larger_part():
    (row,) = lesson_10.overlap_table(IDLE, "09", "10").to_dict("records")
    assert list(row.values()) == [500, 301, 801, 500, 510]


HOST = host_time_record([("10", host_time_of(64, [250e-6] * 3)), ("10", host_time_of(128, [600e-6] * 3))])


def test_the_host_is_hidden_while_it_is_shorter():
    (row,) = lesson_10.hidden_table(IDLE, HOST, "10").to_dict("records")
    assert list(row.values()) == [250, 500, 50, True, 2.0]
    assert lesson_10.host_ratio(HOST, "10", 128, over=64) == pytest.approx(2.4)


def test_first_tokens_are_compared():
    runs = [("09", run_of(ttft=(0.1,) * 3)), ("10", run_of(ttft=(0.2,) * 3))]
    record = runs_record(runs * 2 * MIN_ROUNDS)
    table = lesson_10.first_token_table({"here": record}, "09", "10")
    (row,) = table.to_dict("records")
    assert list(row.values()) == [100, 200, "×0.500", "[0.500, 0.500]"]


def test_the_cards_that_both_rungs_have_are_compared():
    cards = [
        ("09", 1, "m", (3,), card_of(5)),
        ("09", 2, "m", (3, 3), card_of(5)),
        ("10", 1, "m", (3,), card_of(5)),
    ]
    assert lesson_10.card_differences(card_record(cards), "09", "10") == (1, {})
    cards += [("10", 2, "m", (3, 3), card_of(6)), ("08", 2, "m", (3, 3), card_of(9))]
    assert lesson_10.card_differences(card_record(cards), "09", "10") == (2, {"kernels": [(5, 6)]})
