"""Tokens that are read one step behind, where a launch or a reading fails: none is lost, and none doubled."""

from collections import defaultdict

import pytest
from helpers import (
    Boom,
    ahead,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    tokens_alone,
    tokens_by_request,
)
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS

from labkit import InferenceEngine, SamplingParams
from labkit.engine import overlap
from labkit.engine.step.staging import TokenCopy
from labkit.ladder import OVERLAP

TO_GO_ON = {  # places in a launch of requests who were together before
    "taking blocks": lambda engine: (engine.kv_manager, "add_blocks"),
    "the device's work": lambda engine: (engine.decode_step, "device_step"),
    "when the device has done it all": lambda engine: (engine.decode_step.pinned_tokens, "start_copy"),
}


def started(options, num_steps: int, block_size: int = 4) -> tuple[InferenceEngine, list[int], list]:
    """Three requests after so many steps, and what was handed out."""
    engine = make_engine(options=options, prefix_cache=False, block_size=block_size)
    ids = [engine.add_request(*each) for each in zip(PROMPTS[:3], EACH_PARAMS, strict=False)]
    return engine, ids, [output for _ in range(num_steps) for output in engine.step()]


def assert_all_get_their_tokens(engine: InferenceEngine, ids: list[int], outputs: list) -> None:
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[: len(ids)]
    assert_no_block_is_lost(engine)


def held_by(engine: InferenceEngine) -> tuple[int, dict]:
    """Free blocks, and each running request's tokens, in the cache and out of it."""
    return engine.stats().free_blocks, {
        request.request_id: (session.num_tokens, list(request.token_ids))
        for request, session in engine.scheduler.running.items()
    }


@ahead
@pytest.mark.parametrize("place", TO_GO_ON)
def test_a_launch_that_fails_keeps_the_step_in_flight_for_the_next_call(monkeypatch, options, place):
    engine, ids, outputs = started(options, num_steps=3)
    in_flight, before = engine.readback.in_flight, held_by(engine)
    owner, name = TO_GO_ON[place](engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(owner, name, failing(getattr(owner, name)))
        engine.step()
    engine.check_integrity()
    assert engine.readback.in_flight is in_flight and held_by(engine) == before
    # The device may be ahead of the host: nothing is launched before the host knows all tokens again.
    outputs += engine.step()
    assert not engine.readback.is_ahead
    assert tokens_by_request(outputs) == {i: e[:4] for i, e in zip(ids, EXPECTED, strict=False)}
    outputs += engine.step()
    assert engine.readback.is_ahead
    assert_all_get_their_tokens(engine, ids, outputs)


@ahead
@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_launch_whose_batch_cannot_be_noted_is_taken_back(monkeypatch, options, num_steps):
    """With nothing in flight, and behind a step that is, when a newcomer makes it another batch."""
    engine, ids, outputs = started(options, num_steps)
    ids.append(engine.add_request(PROMPTS[3], EACH_PARAMS[3]))
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(overlap, "Batch", failing(overlap.Batch))
        while True:
            outputs += engine.step()
    engine.check_integrity()
    assert engine.readback.is_ahead == (num_steps > 0) and len(engine.scheduler.running) == 4
    for request, session in engine.scheduler.running.items():  # the newcomer is not in the step in flight
        was_there = num_steps > 0 and request.request_id != ids[3]
        assert session.num_tokens == request.num_tokens - 1 + was_there
    assert_all_get_their_tokens(engine, ids, outputs)


@ahead
def test_an_error_after_a_launch_has_counted_its_tokens_counts_them_back(monkeypatch, options):
    """As the handler of a signal may raise it, for which nothing waits."""

    class FailsAfterIt(defaultdict):
        def __setitem__(self, path, number):
            if path == "in_place":
                raise Boom
            super().__setitem__(path, number)

    engine, ids, outputs = started(options, num_steps=3)
    before = held_by(engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(engine.kv_manager, "append_paths", FailsAfterIt(int, engine.kv_manager.append_paths))
        engine.step()
    engine.check_integrity()
    assert held_by(engine) == before
    assert_all_get_their_tokens(engine, ids, outputs)


@ahead
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_reading_that_fails_takes_both_steps_back(monkeypatch, options, num_steps: int, times: int):
    engine, ids, outputs = started(options, num_steps)
    for _ in range(times):
        with monkeypatch.context() as patch, pytest.raises(Boom):
            patch.setattr(TokenCopy, "read", failing(TokenCopy.read))
            engine.step()
        engine.check_integrity()
        assert not engine.readback.is_ahead
        for request, session in engine.scheduler.running.items():  # neither of two tokens is counted
            assert session.num_tokens == request.num_tokens - 1
            assert not engine.decode_step.slots.knows(session)
    assert_all_get_their_tokens(engine, ids, outputs)


@ahead
@pytest.mark.parametrize("which", [0, 2])
def test_a_reading_that_fails_after_somebody_left_gives_nothing_back_to_them(monkeypatch, options, which):
    engine, ids, outputs = started(options, num_steps=3, block_size=1)
    gone = list(engine.scheduler.running.values())[which]
    engine.cancel(ids[which])
    ids += [engine.add_request(*each) for each in zip(PROMPTS[3:], EACH_PARAMS[3:], strict=True)]
    outputs += engine.step()  # their prefill, into blocks of who left
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(TokenCopy, "read", failing(TokenCopy.read))
        engine.step()
    engine.check_integrity()
    assert gone.num_tokens == 0 and not any(gone.block_ids_per_layer)
    handed_out = tokens_by_request(outputs + run(engine))
    for i, expected in zip(ids, EXPECTED, strict=True):
        assert handed_out[i] == (expected[:3] if i == ids[which] else expected)
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_an_error_behind_a_copy_leaves_the_tokens_in_flight_alone(monkeypatch, error):
    """The copy was started, and its step is nobody's: the next copy leaves the tokens of the step before."""
    engine = make_engine(options=OVERLAP, prefix_cache=False)
    a = engine.add_request((1, 2, 3), SamplingParams(3))
    outputs = [output for _ in range(2) for output in engine.step()]
    b = engine.add_request((7,), SamplingParams(6))
    outputs += engine.step()
    pinned_tokens = engine.decode_step.pinned_tokens
    start_copy, left_behind = pinned_tokens.start_copy, []

    def fails_behind(token_ids):
        left_behind.append(start_copy(token_ids))
        if len(left_behind) == 1:
            raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(pinned_tokens, "start_copy", fails_behind)
        engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert handed_out[a] == tokens_alone((1, 2, 3), SamplingParams(3))
    assert handed_out[b] == tokens_alone((7,), SamplingParams(6))
    assert len(pinned_tokens.buffers) == 3 and left_behind  # it is held: a buffer was added
