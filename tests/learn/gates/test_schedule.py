"""Random schedules: what moves they make, and that what goes wrong is told."""

import pytest
from helpers import make_engine, tokens_alone

from labkit import LADDER, SamplingParams
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import NUM_MOVES, SEEDS
from labkit.learn.gates.schedule import GREEDY, Invariant, Schedule, broken_behind, prove
from labkit.watch import PlantedError


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["00", "05", "06", "10"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_meets_everything_that_can_happen_and_ends_with_no_work(rung, seed):
    engine = make_engine(options=LADDER[rung].options, max_blocks_per_layer=12, max_batch_size=4)
    Schedule(engine, tokens_alone, (), seed).play(NUM_MOVES)
    stats = engine.stats()
    assert not engine.has_work
    assert stats.counters.finished["cancelled"] > 0 and stats.counters.finished["length"] > 3
    assert stats.append_paths["boundary"] > 0 and stats.append_paths["copy_on_write"] > 0
    assert stats.counters.reused_tokens > 0


def test_the_same_seed_makes_the_same_moves():
    def finished(seed):
        engine = make_engine(options=LADDER["05"].options, max_blocks_per_layer=12)
        Schedule(engine, tokens_alone, (), seed).play(40)
        return engine.stats().counters.steps, engine.stats().append_paths

    assert finished(1) == finished(1) != finished(2)


def test_a_request_that_never_ends_is_told(monkeypatch):
    engine = make_engine()
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: step() and [])  # its tokens are lost
    with pytest.raises(BrokenContract, match=r"requests \[.*\] never ended"):
        Schedule(engine, tokens_alone, (), 0).play(5)


@pytest.mark.slow
@pytest.mark.parametrize(("rung", "fails"), [("05", False), ("06", True), ("10", True)])
def test_where_state_lies_on_the_device_some_steps_fail(rung, fails, monkeypatch):
    engine = make_engine(options=LADDER[rung].options, max_blocks_per_layer=12, max_batch_size=4)
    step, failed = engine.step, []

    def noting_failures():
        try:
            return step()
        except PlantedError as error:
            failed.append(str(error))
            raise

    monkeypatch.setattr(engine, "step", noting_failures)
    Schedule(engine, tokens_alone, (), 0).play(NUM_MOVES)
    assert {*failed} == ({"start_copy was made to fail", "read was made to fail"} if fails else set())


def test_requests_are_sampled_in_turn():
    drawing, seen = SamplingParams(temperature=0.8, seed=3, stop_on_eos=False), []

    def expected(prompt, params):
        seen.append(params.temperature)
        return tokens_alone(prompt, params)

    Schedule(make_engine(), expected, (), 0, (GREEDY, drawing)).play(30)
    assert len(seen) > 3 and seen == [0.0, 0.8] * (len(seen) // 2) + [0.0] * (len(seen) % 2)


def test_a_contract_is_found_behind_the_error_that_followed_it():
    with pytest.raises(ValueError) as raised:
        try:
            raise BrokenContract("two share a slot.")
        finally:
            raise ValueError("nothing to undo")
    assert str(broken_behind(raised.value)) == "two share a slot."
    assert broken_behind(ValueError("by itself")) is None


def test_the_first_invariant_that_is_off_is_told_with_its_hint():
    holds = Invariant("this holds", lambda engine: "", "No hint.")
    is_off = Invariant("that holds", lambda engine: "row 3 is 4, expected 5.", "Look at row 3.")
    prove(make_engine(), (holds,))
    with pytest.raises(BrokenContract, match=r"^that holds: row 3 is 4, expected 5\. Look at row 3\.$"):
        prove(make_engine(), (holds, is_off, holds))
