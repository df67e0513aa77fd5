"""Random schedules: what moves they make, and that what goes wrong is told."""

import pytest
from helpers import make_engine, tokens_alone

from labkit import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import NUM_MOVES, SEEDS
from labkit.learn.gates.schedule import Schedule, broken_behind
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


def test_a_contract_is_found_behind_the_error_that_followed_it():
    with pytest.raises(ValueError) as raised:
        try:
            raise BrokenContract("two share a slot.")
        finally:
            raise ValueError("nothing to undo")
    assert str(broken_behind(raised.value)) == "two share a slot."
    assert broken_behind(ValueError("by itself")) is None
