"""`python -m labkit.bench ranks`, at night, and where cutting a model pays by its records."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_records import record_of

from labkit.bench.ranks import all_gains, by_model, gains_table
from labkit.results.files import load_file
from labkit.results.ranks import CUT, CUT_NCCL, ONE, RanksRun


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


def record(model, gpus, times, requests=(1, 32), sums_us=240.0):
    """Times of the three sides, each in two rounds, of 11 tokens a request."""
    kernels = {"_residual_sum_of_peers_kernel": sums_us, "ncclDevKernel_AllReduce_Sum": sums_us, "other": 9.0}
    runs = [
        RanksRun(side, n, seconds * n**0.5, 10 * n, kernels if i == 3 and side != ONE else {})
        for n in requests
        for side, seconds in zip((ONE, CUT, CUT_NCCL), times, strict=True)
        for i in range(4)
    ]
    settings = {"ranks": gpus, "prompt_tokens": 32, "max_new_tokens": 11, "rung": "14"}
    return record_of("ranks", runs, model=model, **settings)


def test_a_table_has_what_is_known_of_a_model_and_none_is_made_of_no_record():
    gains = all_gains([record("data/tiny-gpt2", 2, (1, 2, 3)), record("random:gpt2", 2, (0.01, 0.02, 0.015))])
    table = gains_table(gains)
    assert list(table.index) == ["gpt2"] * 2 + ["data/tiny-gpt2"] * 2
    assert table["a sum (µs)"].iloc[-1] == table["GB/s of each GPU"].iloc[-1] == "–"
    assert by_model(gains)["gpt2"]["2 × a"][32].verdict == "slower"
    assert gains_table([]).empty
