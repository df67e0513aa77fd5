"""`python -m labkit.bench replicas`: refused without Ray, and with it a record."""

import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench_commands import refusal

from labkit import SamplingParams
from labkit.bench import replicas
from labkit.bench.loads import Asked, make_load
from labkit.bench.replicas import mixed
from labkit.bench.workload import Request
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.results.files import load_file


def asked(count, seed=0):
    params = SamplingParams(4, stop_on_eos=False)
    return Asked((Request((), params),) * count, RANDOM_CONFIGS["gpt2"], seed)


def test_several_beginnings_are_mixed_and_do_not_take_turns():
    requests = mixed("shared-prefix", 3, asked(8))
    beginnings = [request.prompt[:512] for request in requests]
    assert sorted(map(beginnings.count, set(beginnings))) == [2, 3, 3]
    assert beginnings != (beginnings[:3] * 3)[:8]
    assert len({request.prompt for request in requests}) == 8


def test_each_seed_has_beginnings_of_its_own_and_one_is_the_load_itself():
    first, second = (mixed("shared-prefix", 3, asked(6, seed)) for seed in (0, 1))
    assert not {each.prompt[:512] for each in first} & {each.prompt[:512] for each in second}
    assert mixed("ragged", 1, asked(6, 5)) == make_load("ragged", asked(6, 5))


def test_it_needs_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(replicas, "find_spec", lambda name: None)
    said = refusal(monkeypatch, capsys, "replicas --device cpu")
    assert "pip install -e '.[cluster]'" in said


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_two_replicas_under_both_policies_write_a_record(tmp_path: Path):
    """Where requests take turns, two replicas compute beginnings that prefix affinity finds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "replicas.json"
    flags = ["--device=cpu", "--replicas=2", "--policies=prefix,round-robin", "--load=shared-prefix"]
    flags += ["--prefixes=3", "--requests=6", "--max-new-tokens=2", "--within=6", "--rounds=1"]
    command = [sys.executable, "-m", "labkit.bench", "replicas", *flags, f"--port={port}", f"--json={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    prefix, turns = load_file(path).samples
    assert [(run.replicas, run.side, run.tokens) for run in (prefix, turns)] == [
        (2, "prefix", 24),
        (2, "round-robin", 24),
    ]
    assert len(prefix.reused) == len(turns.reused) == 2 and turns.answered == (6, 6)
    assert 0 < sum(turns.reused) < sum(prefix.reused)
