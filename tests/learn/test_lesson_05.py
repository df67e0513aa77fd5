"""Lesson 05: what it counts, what it breaks on purpose, and what it reads from records."""

import pytest
import torch
from helpers import GREEDY, make_engine, run, tokens_alone, tokens_by_request
from made_records import host_time_of, host_time_record, run_of, runs_record

from labkit.kvcache import KVBlockInfo, KVBlockManager, MutableInfoBlockManager, MutableKVBlockInfo
from labkit.ladder import LADDER
from labkit.learn import lesson_05
from labkit.learn.lesson_05 import (
    LEFT_BEHIND,
    CountsBeforeTheWrite,
    PlainKVBlockInfo,
    append_work,
    block_life,
    fail_a_step,
    fail_an_append,
    stored_after_retry,
)
from labkit.results import HostTime

REPLACED, MUTABLE = LADDER["04"].options, LADDER["05"].options
both_kinds = pytest.mark.parametrize("kind", [KVBlockManager, MutableInfoBlockManager])


# --- what is counted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_replaced_record_costs_an_object_a_read_and_a_write_more_for_each_token(batch_size):
    replaced, mutable = (append_work(k, batch_size) for k in (KVBlockManager, MutableInfoBlockManager))
    assert {row: replaced[row] - mutable[row] for row in mutable} == dict.fromkeys(mutable, batch_size)
    assert mutable["KVBlockInfo objects created"] == mutable["writes to the dictionary of records"] == 0
    assert mutable["reads of the dictionary of records"] == batch_size


@pytest.mark.parametrize("num_tokens", [1, 5, 64])
def test_the_records_of_a_block_s_life(num_tokens):
    replaced, mutable = (block_life(k, num_tokens) for k in (KVBlockManager, MutableInfoBlockManager))
    assert replaced.created == tuple(range(2, num_tokens + 2))  # one that says 0, and one for each token
    assert mutable.created == (1,) * num_tokens
    assert replaced.shown == mutable.shown == replaced.kept == tuple(range(1, num_tokens + 1))
    assert mutable.kept == (num_tokens,) * num_tokens


@pytest.mark.parametrize("name", lesson_05.FORMS)
def test_each_way_of_counting_counts(name):
    kind, count_up = lesson_05.FORMS[name]
    records = [kind(layer=0, block_index=i, start=0, length=i) for i in range(3)]
    infos = dict(enumerate(records))
    count_up(infos, [0, 1, 2], records)
    expected = [0, 1, 2] if name == "new record, not stored" else [1, 2, 3]
    assert [infos[i].length for i in range(3)] == expected


def test_the_forms_are_timed_in_turn_and_compared_with_the_first(monkeypatch):
    clock = {form: iter(range(1000)) for form in lesson_05.FORMS.values()}
    seconds = dict(zip(lesson_05.FORMS.values(), (8e-9, 4e-9, 2e-9, 1e-9, 1e-9), strict=True))

    def timed(*form):
        next(clock[form])
        return seconds[form]

    monkeypatch.setattr(lesson_05, "time_form", timed)
    table = lesson_05.time_forms(rounds=2)
    assert list(table["ns a token"]) == [8, 4, 2, 1, 1]
    assert list(table["times faster"]) == [1, 2, 4, 8, 8]
    assert table["interval"].iloc[1] == "[2.000, 2.000]"
    assert [next(c) for c in clock.values()] == [2 + 4] * 5  # a round to warm up, two to measure


def test_a_form_is_really_timed():
    assert all(
        lesson_05.time_form(*form, num_blocks=3, num_tokens=4) > 0 for form in lesson_05.FORMS.values()
    )


def test_slots_take_less_memory_than_a_dict():
    sizes = {k: lesson_05.bytes_of_a_record(k) for k in (KVBlockInfo, PlainKVBlockInfo, MutableKVBlockInfo)}
    assert 32 < sizes[MutableKVBlockInfo] < sizes[PlainKVBlockInfo]
    assert all(size < 500 for size in sizes.values())


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


# --- host time ---------------------------------------------------------------------------------------


def times(*sizes, fixed=10e-6, each=1e-6):
    return [
        HostTime(b, 2, (5e-6 + fixed + each * b,) * 3, (2e-6,) * 3, (fixed + each * b,) * 3) for b in sizes
    ]


def test_a_step_s_parts_add_up():
    (host,) = times(8)
    parts = lesson_05.step_parts(host)
    assert parts == pytest.approx({"block tables": 2, "append": 18, "the rest": 3})


def test_the_append_is_a_line_in_the_batch_size():
    assert lesson_05.append_line(times(1, 8, 64)) == pytest.approx((10, 1))


HOST_RECORD = host_time_record(
    [
        ("04", host_time_of(8, (8.0, 8.0), (2.0, 2.0), (4.0, 4.0))),
        ("05", host_time_of(8, (6.0, 6.0), (2.0, 2.0), (2.0, 2.0))),
    ]
    * 4
)


def test_the_tables_of_host_time_say_what_the_comparisons_say():
    (row,) = lesson_05.host_table(HOST_RECORD, "04", "05", [8]).to_dict("records")
    assert row == {
        "append": "×2.00",
        "append, interval": "[2.000, 2.000]",
        "step": "×1.33",
        "step, interval": "[1.333, 1.333]",
        "verdict on the step": "faster",
    }
    (row,) = lesson_05.amdahl_table(HOST_RECORD, "04", "05", [8]).to_dict("records")
    assert list(row.values()) == ["50%", "×2.00", "×1.33", "×1.33", "×2.00"]


def test_what_the_append_saves_is_expected_of_the_whole_step():
    runs = runs_record([("04", run_of(100.0)), ("05", run_of(80.0))] * 2, max_batch_size=8)
    row = lesson_05.expected_end_to_end(runs, HOST_RECORD, "04", "05")
    assert list(row.values()) == [10_000, 2_000, "×1.250", "×1.250", "[1.250, 1.250]"]


def test_the_figures_of_a_recorded_run():
    run = run_of(
        1.0,
        2.0,
        decoded_tokens=27,
        append_paths={"in_place": 20, "boundary": 7},
        new_tokens=(4, 4, 22),
        gaps_us=[5000] * 9,
        tpot=(0.001,) * 3,
        ttft=(0.1, 0.3, 0.2),
        queue_wait=(0.0, 0.2, 0.1),
    )
    assert lesson_05.run_figures(run) == {"throughput": 15, "TPOT p99": 1, "ITL p99": 5}
    assert list(lesson_05.queue_figures(run).values()) == [200, 100, 1, 100, 2.7, "in_place, boundary"]


def test_host_times_are_measured_in_turn():
    compared = lesson_05.compare_host(REPLACED, MUTABLE, 2, torch.device("cpu"), rounds=1, num_steps=2)
    for comparison in compared.values():
        assert len(comparison.before_samples) == len(comparison.after_samples) == 2
    assert all(
        append < step
        for append, step in zip(
            compared["append"].before_samples, compared["step"].before_samples, strict=True
        )
    )
