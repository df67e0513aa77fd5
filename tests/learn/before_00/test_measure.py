"""A chain of small kernels on this machine's clock."""

import pytest
import torch

from labkit.learn.before_00 import measure
from labkit.learn.before_00.measure import time_chain


def test_the_clock_is_read_when_all_is_launched_and_when_all_is_done(monkeypatch):
    """With a clock that goes on by one second at each look: begin, all launched, all done."""
    seconds = iter(range(1000))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(seconds))
    timed = time_chain(torch.device("cpu"), numbers=4, kernels=10, rounds=3)
    assert (timed.issued_us, timed.done_us, timed.read_us) == (1e5, 2e5, 2e5)


@pytest.mark.cuda
def test_on_a_gpu_a_launch_returns_before_its_kernel_is_done():
    timed = time_chain(torch.device("cuda"), numbers=2**26, kernels=50, rounds=3)
    assert timed.issued_us < timed.done_us / 2 and timed.done_us < timed.read_us
