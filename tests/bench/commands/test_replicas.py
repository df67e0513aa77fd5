"""`python -m labkit.bench replicas`: refused without Ray, and with it a record of each load."""

import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench_commands import refusal

from labkit.bench.commands import replicas
from labkit.results.files import load_file


def test_it_needs_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(replicas, "find_spec", lambda name: None)
    said = refusal(monkeypatch, capsys, "replicas --device cpu")
    assert "pip install -e '.[cluster]'" in said


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_two_replicas_under_both_policies_write_a_record_of_each_load(tmp_path: Path):
    """Where requests take turns, two replicas compute beginnings that prefix affinity finds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "replicas.json"
    flags = ["--device=cpu", "--replicas=2", "--policies=prefix,round-robin", "--load=ragged,shared-prefix"]
    flags += ["--prefixes=3", "--requests=6", "--max-new-tokens=2", "--within=6", "--rounds=1"]
    command = [sys.executable, "-m", "labkit.bench", "replicas", *flags, f"--port={port}", f"--json={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {each.name for each in tmp_path.iterdir()} == {
        "replicas_ragged.json",
        "replicas_shared_prefix.json",
    }
    prefix, turns = load_file(tmp_path / "replicas_shared_prefix.json").samples
    assert [(run.replicas, run.side, run.tokens) for run in (prefix, turns)] == [
        (2, "prefix", 24),
        (2, "round-robin", 24),
    ]
    assert len(prefix.reused) == len(turns.reused) == 2 and turns.answered == (6, 6)
    assert 0 < sum(turns.reused) < sum(prefix.reused)
