"""A step beside its plain twin: the package's are the same, and what differs is told with its place."""

import pytest
import torch
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.same_step import replays_proven, steps_proven
from labkit.watch import replaced


@pytest.fixture
def engine():
    engine = make_engine(options=LADDER["07"].options)
    engine.add_request((1, 2, 3), SamplingParams(9))
    engine.step()
    return engine


def spoiling(spoil):
    """A wrapper of a device's step: spoils something behind it."""

    def wrapper(inner):
        def launch(*about):
            tokens = inner(*about)
            spoil(tokens)
            return tokens

        return launch

    return wrapper


def test_the_package_s_steps_are_the_plain_step(engine):
    with steps_proven(engine):
        assert [len(engine.step()) for _ in range(3)] == [1, 1, 1]


def test_what_differs_is_told_with_its_place(engine):
    slots, pool = engine.decode_step.slots, engine.kv_manager
    draws, lens = slots.sampling_state.draws, slots.context_lens
    spoils = {
        r"row 0 of 1 \(request 0\) is token \d+, expected": lambda tokens: tokens.add_(1),
        r"context_lens\[0\] \(request 0\) is 5 after it, expected 4": lambda _: lens[0].add_(1),
        r"draws\[3\] \(a free slot\) is 1 after it, expected 0": lambda _: draws[3].add_(1),
        r"v_cache of layer 1, block 2, place 3 is not": lambda _: pool.v_cache[1, 2, 0, 3, 0].add_(1),
        r"slots\.context_lens is a new tensor": lambda _: setattr(slots, "context_lens", lens.clone()),
    }
    for told, spoil in spoils.items():
        with (
            replaced(engine.decode_step, "device_step", spoiling(spoil)),
            steps_proven(engine),
            pytest.raises(BrokenContract, match=told),
        ):
            engine.step()
        draws.zero_()
        pool.v_cache[1, 2, 0, 3, 0] = 0


def test_a_step_that_changes_nothing_is_told(engine):
    tokens = torch.zeros(1, dtype=torch.int64)
    with (
        replaced(engine.decode_step, "device_step", lambda _: lambda *about: tokens),
        steps_proven(engine),
        pytest.raises(BrokenContract, match=r"a step runs on the device: .* all as they were before it"),
    ):
        engine.step()


def test_a_forward_that_python_runs_is_no_replay(engine):
    with (
        replays_proven(engine),
        pytest.raises(BrokenContract, match="run from Python for a greedy batch of 1 while serving"),
    ):
        engine.step()
