"""Tokens that are read one step behind, where a launch or a reading fails: none is lost, and none doubled."""

import pytest
from helpers import (
    Boom,
    make_engine,
    run,
    tokens_alone,
    tokens_by_request,
)

from labkit import SamplingParams
from labkit.ladder import OVERLAP


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


# --- on a GPU --------------------------------------------------------------------------------------
