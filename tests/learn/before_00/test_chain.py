"""Host and GPU on one clock: the figures of the page, the formula of a step, and what always holds."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from labkit.learn.before_00.chain import Chain, schedule

times = st.integers(1, 30)
chains = st.builds(Chain, st.integers(1, 9), times, times, st.booleans())


def lane(made, name):
    return [(busy.start, busy.end) for busy in made if busy.lane == name]


def test_the_readers_own_function_makes_the_schedule():
    as_launched = schedule(Chain(3, 2, 5), 1, begins=lambda issued, gpu_us: issued)
    assert lane(as_launched, "GPU") == [(2, 7), (4, 9), (6, 11)]


@given(chains, st.integers(2, 5))
def test_a_step_takes_what_the_formula_says(chain, num_steps):
    ends = [busy.end for busy in schedule(chain, num_steps) if busy.lane == "GPU"][
        chain.kernels - 1 :: chain.kernels
    ]
    assert {after - before for before, after in pairwise(ends)} == {chain.step_us}


@given(chains, st.integers(1, 4))
def test_a_kernel_waits_for_its_launch_and_for_the_kernel_before_it_and_no_longer(chain, num_steps):
    made = schedule(chain, num_steps)
    launched = [end for _, end in lane(made, "host")]
    kernels = lane(made, "GPU")
    ends = [0, *(end for _, end in kernels)]
    assert [start for start, _ in kernels] == [max(both) for both in zip(launched, ends, strict=False)]
    assert all(end <= start for (_, end), (start, _) in pairwise(lane(made, "host")))
