"""Lesson 06: what the device is told, and what breaks without the order it is told in."""

import pytest
import torch
from helpers import GREEDY, SEEDED, make_engine, tokens_alone
from made_records import host_time_of, host_time_record

from labkit import SamplingParams, results, show, watch
from labkit.ladder import LADDER
from labkit.learn import lesson_06
from labkit.learn.lesson_06 import LateDevice
from labkit.show.sends import SENT

BELOW, THIS = LADDER["05"].options, LADDER["06"].options
PROMPTS = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10)]
LONG = SamplingParams(max_new_tokens=20)


def prefilled(options, prompts=PROMPTS, params=LONG, **settings):
    engine = make_engine(options=options, **{"prefix_cache": False, **settings})
    for prompt in prompts:
        engine.add_request(prompt, params)
    engine.step()
    return engine


# --- what the host tells the device of rung 05 -------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 6])
def test_what_is_new_is_what_a_block_was_taken_for(num_steps):
    """Of request 1, of two tokens: in the step that begins with 4, and of the others in theirs."""
    engine = prefilled(BELOW)
    watch.record_inputs(engine, num_steps - 1)
    held = [s.num_tokens for s in engine.scheduler.running.values()]
    (before,) = watch.record_inputs(engine, 1)
    picked = lesson_06.last_tokens(engine)
    (now,) = watch.record_inputs(engine, 1)
    table = lesson_06.news(before, now, picked, block_size=4)
    layers = engine.kv_manager.num_layers
    assert table.loc["block tables", "new to it"] == layers * sum(n % 4 == 0 for n in held)
    assert table.loc["block_idx of each layer", "new to it"] == layers * sum((n + 1) % 4 == 0 for n in held)
    assert table["new to it"].drop(["block tables", "block_idx of each layer", "all"]).sum() == 0
    assert table.loc["token ids", "its own tokens"] == 3
    assert (table["numbers"] == table.drop(columns="numbers").sum(axis=1)).all()


def test_what_is_sent_is_counted_alike_on_both_rungs():
    for options in (BELOW, THIS):
        steps = lesson_06.sent_until_done(prefilled(options, params=SamplingParams(6)))
        assert len(steps) == 5
        sent = steps["copies"].tolist()
        layers = 2
        if options is BELOW:
            assert sent == [4 + 2 * layers] * 5  # tables, lengths, tokens, positions; block_idx and pos
        else:
            assert sent[0] == 3 and set(sent[1:]) <= {0, 1}


def test_the_copies_of_a_recorded_profile():
    profile = results.load("profile_rung02_h100").largest.profile
    costs = lesson_06.copy_costs(profile)
    assert costs["small copies"] == 3 + 3 * 12
    assert costs["us of the GPU, each"] < costs["us from one to the next"]


# --- what is sent to slots ---------------------------------------------------------------------------


def test_a_cell_is_drawn_for_each_request_and_step():
    engine = prefilled(THIS, prefix_cache=True)
    sends = watch.record_sends(engine, 3)
    fig = show.draw_sends(sends)
    (axes,) = fig.axes
    assert len(axes.patches) == len(sends.requests) + len(sends.steps)
    texts = [t.get_text() for t in axes.texts]
    assert texts.count("0 c") == 1 and texts.count("0") == 2 and "2 c" in texts
    (legend,) = fig.legends
    words = {t.get_text() for t in legend.get_texts()}
    assert words == {SENT[s][1] for s in ("nothing", "boundary", "joined")} | {"slot_mapping"}


def test_the_device_and_the_host_say_the_same_of_each_slot():
    engine = prefilled(THIS, max_batch_size=4)
    for _ in range(3):
        engine.step()
    table = lesson_06.slots_table(engine)
    assert sorted(table["request"]) == ["", "0", "1", "2", "none: for padding"]
    running = table[table["request"].isin(["0", "1", "2"])]
    assert (
        running["context_lens"].astype(str) + ", " + running["last_token_ids"].astype(str)
    ).tolist() == running["host: tokens, last token"].tolist()
    assert table["context_lens"].iloc[-1] == -1


# --- what breaks -------------------------------------------------------------------------------------


def test_room_made_before_the_forward_overwrites_nothing():
    engine = prefilled(THIS)
    assert [lesson_06.overwritten(engine) for _ in range(8)] == [[]] * 8


def test_room_made_after_it_overwrites_the_first_key_of_block_0():
    engine = prefilled(THIS)
    lesson_06.overwritten(engine)
    at_boundary = {}
    with lesson_06.room_after_the_step(engine):
        for _ in range(4):
            held = tuple(s.num_tokens for s in engine.scheduler.running.values())
            at_boundary[held] = lesson_06.overwritten(engine)
    assert "launch" not in vars(engine.decode_step)
    for held, places in at_boundary.items():
        assert places == ["block 0, slot 0, of request 0"] * any(n % 4 == 0 for n in held)
    engine.check_integrity()  # the books see nothing of it


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("forgets", [True, False])
def test_after_a_failed_step_the_text_is_whole_only_if_the_device_is_told_anew(params, forgets):
    engine = prefilled(THIS, params=params)
    engine.step()
    first = {r.request_id: list(r.output_token_ids) for r in engine.scheduler.running}
    table = lesson_06.fail_after_the_device(engine, forgets)
    assert (table["host, before"] == table["host, after"]).all()
    assert (table["device, before"] == table["host, before"]).all()
    assert (table["device, after"] == table["device, before"] + 1).all()
    assert (table["has a slot"] == (not forgets)).all()
    engine.check_integrity()
    assert not {"forget"} & vars(engine.decode_step.slots).keys()
    made = lesson_06.finish(engine)
    whole = [(*first[i], *made[i]) == tokens_alone(p, params) for i, p in enumerate(PROMPTS)]
    assert all(whole) if forgets else not all(whole)


# --- copies that run late ----------------------------------------------------------------------------


def test_a_late_device_reads_a_buffer_when_it_must():
    device = LateDevice(late_by=1)
    buffer = [1, 2]
    first = device.copy(buffer, 2)
    assert device.arrived == []
    device.copy([3], 1)
    assert device.arrived == [[1, 2]]  # one may be under way
    buffer[:] = [9, 9]
    first.wait()
    assert device.waited == [] and device.arrived == [[1, 2]]  # it was over
    device.finish()
    assert device.arrived == [[1, 2], [3]]


def test_waiting_for_a_copy_is_waiting_for_all_before_it():
    device = LateDevice()
    copies = [device.copy([i], 1) for i in range(3)]
    copies[1].wait()
    assert device.arrived == [[0], [1]] and device.waited == [1]


def test_only_the_wait_for_its_own_copy_makes_a_buffer_safe_however_late_copies_are():
    spoilt = lesson_06.messages_spoilt(12, (0, 1, 2, 5, None))
    one, two, safe = spoilt.values.tolist()
    assert safe == [0] * 5 and one == [0] + [11] * 4 and two[:2] == [0, 0] and min(two[2:]) > 0


# --- sampling and records ----------------------------------------------------------------------------


def test_both_samplers_agree_on_every_row():
    table = lesson_06.sampled_both_ways(torch.device("cpu"), rows_each=20)
    assert (table["the same token"] == 19).all()
    assert (table["None on the host, -1 on the device"] == 1).all()
    assert (table["different tokens"] > 10).all()


def test_recorded_counts_are_those_of_the_step_asked_for():
    record = results.load("cost_cards_h100")
    table = lesson_06.recorded_counts(record, ["04", "05"], 64, {20, 23})
    assert list(table) == ["rung 04", "rung 05"]
    assert table.loc["of the copies, synchronizing"].tolist() == [27, 27]
    assert lesson_06.recorded_counts(record, ["05"], 8, {20}).loc["index tensors constructed"].tolist() == [
        15
    ]


def test_the_parts_of_a_step_are_named_by_the_rung():
    times = [host_time_of(b, (9e-6,) * 3, (2e-6,) * 3, (3e-6,) * 3) for b in (1, 8)]
    record = host_time_record([(rung, time) for rung in ("05", "06") for time in times])
    table = lesson_06.host_parts(record, ("05", "06"), (8,))
    assert list(table) == ["B = 8"]
    assert table["B = 8"].to_dict() == {
        ("rung 05", "block tables"): 2,
        ("rung 05", "append"): 3,
        ("rung 05", "the rest"): 4,
        ("rung 05", "a step"): 9,
        ("rung 06", "tell the device"): 2,
        ("rung 06", "make room"): 3,
        ("rung 06", "the rest"): 4,
        ("rung 06", "a step"): 9,
    }
