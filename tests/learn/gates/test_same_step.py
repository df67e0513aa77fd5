"""A step beside its plain twin: the package's does the same, and what does not is told."""

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.same_step import replays_proven, steps_proven


def engine_of(rung, parts=None):
    engine = make_engine(options=LADDER[rung].options, parts=parts, prefix_cache=False, max_batch_size=3)
    for prompt in ((1, 2, 3), (4, 5)):
        engine.add_request(prompt, SamplingParams(9, stop_on_eos=False))
    engine.step()
    return engine


@pytest.mark.parametrize("rung", ["06", "07", "08", "09"])
def test_a_step_of_the_package_is_its_twin(rung):
    engine = engine_of(rung)
    with steps_proven(engine):
        while engine.has_work:
            engine.step()
    assert engine.stats().counters.finished == {"length": 2}


def test_tokens_of_another_step_are_told():
    def one_more(device_step):
        return lambda *about: device_step(*about) + 1

    engine = engine_of("08", {"launch": one_more})
    with pytest.raises(BrokenContract, match=r"token"), steps_proven(engine):
        engine.step()


def test_a_forward_while_serving_is_no_replay():
    engine = engine_of("08", {"launch": lambda device_step: lambda *about: device_step(*about)})
    with (
        pytest.raises(BrokenContract, match="a step is a replay: the forward"),
        replays_proven(engine),
    ):
        engine.step()
