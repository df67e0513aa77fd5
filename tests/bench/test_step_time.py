"""How long a decode step takes: one time per step, around the step alone."""

import pytest

from labkit.bench import step_time
from labkit.bench.step_time import time_decode_steps


class Clocked:
    """An engine whose steps take 2, 3, 4 ... seconds of a clock that nothing else moves."""

    device = None

    def __init__(self):
        self.now, self.steps = 100.0, 0

    def step(self):
        self.steps += 1
        self.now += 1 + self.steps


@pytest.fixture
def engine(monkeypatch):
    engine = Clocked()
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: engine.now)
    return engine


def test_each_step_is_timed_by_itself(monkeypatch, engine):
    waits = []

    def synchronize(device):
        waits.append(engine.steps)
        engine.now += 50 if len(waits) % 2 else 0.5  # before a step: not counted; behind it: a part of it

    monkeypatch.setattr(step_time, "synchronize", synchronize)
    assert time_decode_steps(engine, 3) == [2.5, 3.5, 4.5]
    assert waits == [0, 1, 1, 2, 2, 3]  # the device is waited for before and behind each step
