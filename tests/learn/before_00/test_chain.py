"""Host and GPU on one clock: the formula of a step, what always holds, and a chain that is measured here."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.learn.before_00 import chain
from labkit.learn.before_00.chain import Chain, schedule, time_chain

times = st.integers(1, 30)
chains = st.builds(Chain, st.integers(1, 9), times, times, st.booleans())


def lane(made, name):
    return [(busy.start, busy.end) for busy in made if busy.lane == name]


def test_the_readers_own_function_makes_the_schedule():
    as_launched = schedule(Chain(3, 2, 5), 1, begins=lambda issued, gpu_us: issued)
    assert lane(as_launched, "GPU") == [(2, 7), (4, 9), (6, 11)]


@given(chains, st.integers(2, 5))
def test_a_step_takes_what_the_formula_says(step, num_steps):
    ends = [busy.end for busy in schedule(step, num_steps) if busy.lane == "GPU"][
        step.kernels - 1 :: step.kernels
    ]
    assert {after - before for before, after in pairwise(ends)} == {step.step_us}


@given(chains, st.integers(1, 4))
def test_a_kernel_waits_for_its_launch_and_for_the_kernel_before_it_and_no_longer(step, num_steps):
    made = schedule(step, num_steps)
    launched = [end for _, end in lane(made, "host")]
    kernels = lane(made, "GPU")
    ends = [0, *(end for _, end in kernels)]
    assert [start for start, _ in kernels] == [max(both) for both in zip(launched, ends, strict=False)]
    assert all(end <= start for (_, end), (start, _) in pairwise(lane(made, "host")))


def test_the_clock_is_read_when_all_is_launched_and_when_all_is_done(monkeypatch):
    """With a clock that goes on by one second at each look: begin, all launched, all done."""
    seconds = iter(range(1000))
    monkeypatch.setattr(chain.time, "perf_counter", lambda: next(seconds))
    timed = time_chain(torch.device("cpu"), numbers=4, kernels=10, rounds=3)
    assert (timed.issued_us, timed.done_us, timed.read_us) == (1e5, 2e5, 2e5)


@pytest.mark.cuda
def test_on_a_gpu_a_launch_returns_before_its_kernel_is_done():
    timed = time_chain(torch.device("cuda"), numbers=2**26, kernels=50, rounds=3)
    assert timed.issued_us < timed.done_us / 2 and timed.done_us < timed.read_us
