"""All peers on one workload, and what is said of one that cannot run."""

import signal
import time
from contextlib import suppress

import pytest
from peer_workloads import LEVEL, workload

from labkit import load_model
from labkit.bench.peers import together
from labkit.bench.workload import Workload

pytestmark = pytest.mark.slow


def test_a_peer_that_fails_is_left_out_with_its_reason(monkeypatch):
    def broken(work, reference, cache_implementation):
        if cache_implementation == "static":
            raise RuntimeError("no static cache today\nand a long trace")
        return made_up

    made_up = lambda: together.PeerRun(1.0, 0.5, ((1,), (2,), (3,)))  # noqa: E731
    monkeypatch.setattr(together, "generate_peer", broken)
    ran = together.run_peers(workload(), ("00",), rounds=1, others=(together.DYNAMIC, together.STATIC))
    assert ran.left_out[together.STATIC] == "RuntimeError: no static cache today"
    assert list(ran.runs) == ["labkit 00", together.DYNAMIC]
    assert ran.equal_requests(ran.runs[together.DYNAMIC][0]) == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarm")
def test_a_peer_that_does_not_get_ready_is_left_out(monkeypatch):
    def endless():
        while True:
            with suppress(Exception):  # as a library does that goes on after every error
                time.sleep(10)

    monkeypatch.setattr(together, "WARM_UP_SECONDS", 0.1)
    before = signal.getsignal(signal.SIGALRM)
    assert together.warmed_up(endless) == "TookTooLongError: it took more than 0.1 s"
    assert together.warmed_up(lambda: lambda: 1 / 0) == "ZeroDivisionError: division by zero"
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.cuda
def test_on_a_gpu_the_static_cache_is_compiled():
    work = Workload.alike(load_model("data/tiny-gpt2"), LEVEL, 8, device="cuda")
    ran = together.run_peers(work, ("00", "10"), rounds=1)
    assert ran.compiled or together.STATIC in ran.left_out
    assert {together.DYNAMIC, together.CONTINUOUS, together.COMPILED} <= set(ran.runs), ran.left_out
