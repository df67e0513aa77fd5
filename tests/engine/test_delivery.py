"""What a step hands out: a sequence of `StepOutput`, of one driver's requests alone."""

import pytest
from helpers import GREEDY, make_engine

from labkit.engine import StepOutput, StepOutputs


def test_outputs_are_a_sequence_of_step_outputs():
    outputs = StepOutputs()
    assert not outputs and list(outputs) == [] and outputs.completions == []
    (end,) = make_engine().generate([(1, 2, 3)], GREEDY)
    outputs.extend([1, 2], [10, 20])
    outputs.append(1, 11, end)
    outputs.append(2, None, None)
    expected = [
        StepOutput(1, 10, None),
        StepOutput(2, 20, None),
        StepOutput(1, 11, end),
        StepOutput(2, None, None),
    ]
    assert list(outputs) == expected and outputs
    assert len(outputs) == 4 and [outputs[i] for i in range(-4, 4)] == expected * 2
    assert outputs[1:3] == expected[1:3] and outputs[::-1] == expected[::-1]
    assert outputs.completions == [end]
    assert outputs.request_ids == [1, 2, 1, 2] and outputs.token_ids == [10, 20, 11, None]
    assert repr(outputs) == repr(expected)
    with pytest.raises(IndexError):
        outputs[4]
    without_1, without_2 = outputs.without(1), outputs.without(2)
    assert list(without_1) == [expected[1], expected[3]] and without_1.completions == []
    assert list(without_2) == [expected[0], expected[2]] and without_2.completions == [end]
    assert list(outputs) == expected  # as before
