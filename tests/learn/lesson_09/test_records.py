"""Lesson 09: steps of several engines, timed in turn."""

from helpers import make_engine

from labkit import LADDER
from labkit.learn.lesson_09 import records


def test_each_engine_is_compared_with_the_first(monkeypatch):
    seconds = iter(range(1, 1000))
    monkeypatch.setattr(records, "time_decode_steps", lambda engine, num_steps: [next(seconds)])
    engines = {number: make_engine(options=LADDER[number].options) for number in ("07", "08", "09")}
    compared = records.compare_steps(engines, [[1, 2, 3]], rounds=2)
    assert list(compared) == ["08", "09"]
    assert (compared["08"].before, compared["08"].after) == ("07", "08")
    assert compared["08"].before_samples == compared["09"].before_samples
    every = [*compared["08"].before_samples, *(s for c in compared.values() for s in c.after_samples)]
    assert len(set(every)) == len(every)
