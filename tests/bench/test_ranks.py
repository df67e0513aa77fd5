"""`python -m labkit.bench ranks`, as it is without torchrun and, at night, with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.results.files import load_file
from labkit.results.ranks import CUT, ONE


@pytest.mark.nightly
def test_two_ranks_write_one_record(tmp_path: Path):
    path = tmp_path / "ranks.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    requests = 1, 32  # whose prompts come in 16 steps: in the last, the first request has made 16 tokens
    flags = ["--device=cpu", "--model=random:small", "--batch-sizes=1,32", "--max-new-tokens=4"]
    flags += ["--prompt-tokens=32", "--rounds=1"]
    command = [*torchrun, "-m", "labkit.bench", "ranks", *flags, f"--json={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("tokens/s, cut") == 2  # by one rank, behind each number of requests
    record = load_file(path)
    assert (record.ranks, record.kind) == (2, "ranks")
    assert {(run.side, run.requests) for run in record.samples} == {
        (s, n) for s in (ONE, CUT) for n in requests
    }
    assert all(run.decoded_tokens == 3 * run.requests for run in record.samples)
