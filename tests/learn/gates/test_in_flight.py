"""Launches and reads: the package's rung 10 is due each time, and one that reads at once is told."""

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.engine.overlap import ReadAtOnce
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.in_flight import flights_proven, names


def engine_of(parts=None):
    engine = make_engine(options=LADDER["10"].options, parts=parts, prefix_cache=False)
    for prompt in ((1, 2, 3), (4, 5)):
        engine.add_request(prompt, SamplingParams(6, stop_on_eos=False))
    return engine


def test_every_launch_and_read_of_the_package_is_due():
    engine = engine_of()
    with flights_proven(engine) as invariants:
        while engine.has_work:
            engine.step()
            assert [invariant.off(engine) for invariant in invariants] == [""] * len(invariants)
    assert engine.stats().counters.finished == {"length": 2}


def test_reading_at_once_is_told():
    engine = engine_of({"readback": ReadAtOnce})
    with pytest.raises(BrokenContract, match="the next step is launched before this one is read"):  # noqa: SIM117
        with flights_proven(engine):
            while engine.has_work:
                engine.step()


def test_requests_are_named_by_their_ids():
    engine = engine_of()
    engine.step()
    assert names(list(engine.scheduler.running)) == "requests 0, 1"
