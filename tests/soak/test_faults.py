"""Whatever fails in a step, nothing is lost: who goes on has all tokens, or the engine says it is over."""

import random

import faults
import pytest
from fault_points import fault_points, planted_nan
from faults import Trial, points_called, run_schedule, schedule_for
from helpers import every_engine, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import ERRORS, FAMILIES, Fault, Schedule

from labkit import LADDER, FinishReason, InferenceEngine, SamplingParams
from labkit.engine import CacheConfig, SchedulerConfig
from labkit.errors import BrokenEngineError
from labkit.results.files import load_file
from labkit.watch import PlantedError, planted_failure

pytestmark = pytest.mark.slow

SMALL = FAMILIES[0]  # the family of tests that need one alone
SCHEDULES = 34  # of each of 16 rungs: 544 in all. `python tests/soak faults` runs any number.


@pytest.mark.parametrize("rung", LADDER)
def test_nothing_is_lost_whatever_fails(rung):
    options = LADDER[rung].options

    @settings(max_examples=SCHEDULES)
    @given(st.randoms(use_true_random=False))
    def holds(dice):
        run_schedule(options, schedule_for(options, dice))

    holds()


@pytest.mark.cuda
@pytest.mark.parametrize("first_seed", range(0, 12, 4))  # workers take a part each: a rung's graphs take long
@pytest.mark.parametrize("rung", LADDER)
def test_on_a_gpu_nothing_is_lost_whatever_fails(rung, first_seed):
    options = LADDER[rung].options
    for seed in range(first_seed, first_seed + 4):
        run_schedule(options, schedule_for(options, random.Random(seed)), "cuda")


# The append and the forward of other rungs, which a rung's classes have from those that they extend.
OF_OTHER_RUNGS = {
    *("append_token", "append_token_batch", "write_batch", "write"),
    *("reserve_token_batch", "decode_one_token", "advance"),
    *("prefill", "append_prompt", "reserve_prompt", "add_blocks"),
    "copy_on_write",  # full blocks alone are shared on rung 14
}


@pytest.mark.parametrize("rung", LADDER)
def test_schedules_come_by_every_fault_point_that_is_no_other_rungs(rung):
    options = LADDER[rung].options
    points, called = Trial(options, schedule_of()).points, points_called(options, SMALL)
    assert {point.split(".")[1] for point in points.keys() - set(called)} <= OF_OTHER_RUNGS
    assert {"PaddedPrefill.sample", "FirstTokenSampler.sample"} & set(called)


def test_what_one_rung_does_not_come_by_another_one_does():
    called = {point.split(".")[1] for rung in LADDER for point in points_called(LADDER[rung].options, SMALL)}
    assert called >= OF_OTHER_RUNGS


# --- fault points ------------------------------------------------------------------------------

# What can fail, and the names of the calls in which it does: a rung has one of them at least.
THINGS = {
    "a block's allocation": {"allocate_block"},
    "a copy of a shared block": {"copy_on_write"},
    "a prompt's forward": {"prefill"},
    "storing a prompt": {"append_prompt"},
    "attention": {"attention"},
    "the append": {"append", "kv_append", "attention"},  # one kernel from rung 07 on
    "telling the device where blocks are": {"build", "send_rows"},
    "reading the tokens": {"read", "next_tokens"},
    "admission": {"admit"},
    "the prefix cache": {"lookup"},
}


@every_engine
def test_every_rung_has_a_point_for_each_thing_that_can_fail(options):
    """A first token is drawn on the host up to rung 12; the others there, or on the device."""
    points = fault_points(make_engine(options=options)).keys()
    names = {point.split(".")[1] for point in points}
    assert not [thing for thing, calls in THINGS.items() if not calls & names]
    assert len({"PaddedPrefill.sample", "FirstTokenSampler.sample"} & points) == 1
    on_device = [point for point in points if point.endswith((".advance", ".draw_and_advance"))]
    assert len(on_device) == (0 if "DecodeStep.sample" in points else 2)


# --- a schedule ------------------------------------------------------------------------------------


def schedule_of(*drawn: Fault, moves=(("add", 8), ("add", 13), *[("step", 0)] * 4)) -> Schedule:
    cache = CacheConfig(4, max_blocks_per_layer=8)
    return Schedule(cache, SchedulerConfig(max_batch_size=2), tuple(moves), drawn)


def fault_at(point: str, harm: str = "in its place", error=PlantedError, at_call: int = 0) -> Fault:
    return Fault(point, move=2, at_call=at_call, harm=harm, error=error, row=0)


@pytest.mark.parametrize("error", ERRORS)
def test_a_first_token_that_fails_once_costs_nobody_anything(error):
    point, harm = "FirstTokenSampler.sample", "behind its work"
    outcome = run_schedule(LADDER["13"].options, schedule_of(fault_at(point, harm, error)))
    assert outcome.fired == [f"{point}, {harm}"]
    assert outcome.ended == {"length": 2} and outcome.failed_steps == 1


@pytest.mark.parametrize("rung", ["00", "10"])
def test_when_the_device_is_gone_nobody_ends_as_if_all_was_well(rung):
    point = {"00": "DecodeStep.attention", "10": "ResidentDecodeStep.device_step"}[rung]
    outcome = run_schedule(LADDER[rung].options, schedule_of(fault_at(point, "from there on")))
    assert outcome.ended == {"cancelled": 2} and outcome.failed_steps == faults.PATIENCE
    assert not outcome.said_it_cannot_go_on  # the device is back, and so is the engine


@pytest.mark.parametrize("rung", [rung for rung in LADDER if rung >= "06"])
@pytest.mark.parametrize("num_steps", range(1, 6))
def test_an_undo_that_fails_breaks_the_engine_wherever_a_block_stands(rung, num_steps):
    """Away from a block's end nothing on the host showed it, and a steady batch went on with wrong tokens."""
    engine = make_engine(options=LADDER[rung].options, max_blocks_per_layer=40, max_batch_size=2)
    for prompt in ((5, 6, 7), (8, 9)):
        engine.add_request(prompt, SamplingParams(12, stop_on_eos=False))
    while not engine.scheduler.running:
        engine.step()
    for _ in range(num_steps):
        engine.step()
    step = engine.decode_step
    with (
        planted_failure(step.pinned_tokens, "start_copy"),
        planted_failure(step.slots, "forget"),
        pytest.raises(PlantedError, match="forget was made to fail"),
    ):
        engine.step()
    with pytest.raises(BrokenEngineError, match="build a new engine"):
        engine.step()


@pytest.mark.parametrize("rung", ["00", "06", "07", "10", "13", "14", "16"])
def test_numbers_that_are_none_end_only_their_own_request_and_poison_no_block(rung):
    called = points_called(LADDER[rung].options, SMALL)
    point = max(point for point in called if point.endswith(".attention"))  # or of prompts
    outcome = run_schedule(LADDER[rung].options, schedule_of(fault_at(point, "no numbers")))
    assert outcome.fired == [f"{point}, no numbers"] and outcome.ended == {"error": 1, "length": 1}


@pytest.mark.parametrize("leaves", ["is cancelled", "waits again", "goes on"])
@pytest.mark.parametrize("rung", ["13", "14"])
def test_numbers_that_are_none_in_a_prompt_reach_nobody_who_begins_like_it(rung, leaves):
    """A chunk's blocks are no one else's until a token has shown that they hold numbers."""
    prompt, params = tuple(range(20, 44)), SamplingParams(4, stop_on_eos=False)
    engine = make_engine(
        options=LADDER[rung].options, max_batch_size=4, prefill_max_tokens=8, prefill_chunk_tokens=8
    )
    first = engine.add_request((*prompt, 1), params)
    second = engine.add_request((*prompt, 2), params)
    owner, name = fault_points(engine)["PackedAttention.attention"]
    with planted_nan(owner, name, at_call=0, row=2):
        engine.step()
    if leaves == "is cancelled":
        engine.cancel(first)
    if leaves == "waits again":
        engine.scheduler.preempt_newest()
    ended = {}
    while engine.has_work:
        ended |= {out.request_id: out.completion for out in engine.step() if out.completion is not None}
    assert ended[second].token_ids == faults.alone((*prompt, 2), params, "cpu")
    if leaves == "waits again":
        assert ended[first].token_ids == faults.alone((*prompt, 1), params, "cpu")
    if leaves == "goes on":
        assert ended[first].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("rung", ["00", "10"])
def test_a_reader_that_raises_ends_its_own_request_alone(rung):
    moves = ("add", 8), ("open", 13), ("read", 0), ("throw", 0), *[("step", 0)] * 4
    trial = Trial(LADDER[rung].options, schedule_of(moves=moves))
    assert trial.run().ended == {"length": 1}
    assert trial.engine.stats().counters.finished == {"length": 1 + 2, "cancelled": 1}  # and a full batch


def test_what_cannot_be_undone_the_engine_says():
    # The launch asks for nobody to be forgotten; undoing it does, and that fails, too.
    planted = fault_at("ResidentDecodeStep.device_step"), fault_at("DeviceSlots.forget", at_call=1)
    outcome = run_schedule(LADDER["10"].options, schedule_of(*planted))
    assert outcome.said_it_cannot_go_on and outcome.ended == {}


# --- the command ------------------------------------------------------------------------------------


def test_schedules_are_counted_and_are_the_same_from_the_same_seed(soak, capsys, tmp_path):
    line = "faults --device cpu --rungs 00 10 --schedules 3 --seed 2"
    for name in ("first.json", "again.json"):
        soak(f"{line} --json {tmp_path / name}")
        for made in (points_called, faults.alone):
            made.cache_clear()
    assert "rung 00: 3 schedules" in capsys.readouterr().out
    first, again = (load_file(tmp_path / name).samples for name in ("first.json", "again.json"))
    assert [(s["rung"], s["schedules"], s["fell"]) for s in first] == [("00", 3, []), ("10", 3, [])]
    assert all(sum(s["fired"].values()) for s in first)
    assert [{**s, "cpu_seconds": 0} for s in first] == [{**s, "cpu_seconds": 0} for s in again]


def test_a_schedule_that_falls_is_printed_with_what_runs_it_again(soak, monkeypatch, capsys):
    for family in FAMILIES:
        points_called(LADDER["00"].options, family)  # of a sound engine
    monkeypatch.setattr(InferenceEngine, "cancel", lambda *_: None)
    soak("faults --device cpu --rungs 00 --schedules 20")
    flags = capsys.readouterr().out.splitlines()[1].split(": ")[0]
    with pytest.raises(AttributeError):  # nothing was cancelled, and so there is no completion
        soak(f"faults --device cpu {flags}")
