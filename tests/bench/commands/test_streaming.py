"""`streaming`: the write-ups' lines, a record, refusals, chunks, consumers."""

import json
import re

import pytest
from bench_commands import NUMBER, TINY, bench
from sockets import network_calls

from labkit import SamplingParams, load_model
from labkit.bench.loads import Asked, make_load
from labkit.bench.workload import Request
from labkit.results import Run
from labkit.results.files import record_of

pytestmark = pytest.mark.slow

STREAMING_LINES = rf"""=== streaming summary ===
run1 Throughput: {NUMBER} tokens/s \| TPOT p50: {NUMBER} ms/token
run2 Throughput: {NUMBER} tokens/s \| TPOT p50: {NUMBER} ms/token
avg  Throughput: {NUMBER} tokens/s
Completion tokens a run: \[15, 15\]
TTFT p50/p90/p95/p99: {NUMBER}/{NUMBER}/{NUMBER}/{NUMBER} ms
  Queue wait p50/p90/p95/p99: {NUMBER}/{NUMBER}/{NUMBER}/{NUMBER} ms
  Prefill->first token p50/p90/p95/p99: {NUMBER}/{NUMBER}/{NUMBER}/{NUMBER} ms
TPOT p50/p90/p95/p99: {NUMBER}/{NUMBER}/{NUMBER}/{NUMBER} ms/token
ITL p50/p90/p95/p99: {NUMBER}/{NUMBER}/{NUMBER}/{NUMBER} ms
Latency p50/p90/p95/p99: {NUMBER}/{NUMBER}/{NUMBER}/{NUMBER} ms
"""


def test_streaming_prints_the_seeds_lines_and_writes_a_record(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    line = (
        f"streaming {TINY} --max-new-tokens 5 --no-stop-on-eos --warmup-runs 0 --repeat-runs 2 --json {out}"
    )
    with network_calls() as calls:
        bench(monkeypatch, line)
    assert calls == []
    assert re.search(STREAMING_LINES, capsys.readouterr().out)
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    assert [sample["new_tokens"] for sample in recorded["samples"]] == [[5, 5, 5]] * 2
    assert [len(Run.from_dict(sample).gaps_us) for sample in recorded["samples"]] == [12, 12]


LINE = (
    "streaming --model data/tiny-gpt2 --device cpu --no-prefix-cache --pretok --num-requests 3 "
    "--max-batch-size 2 --no-stop-on-eos --warmup-runs 0 --repeat-runs 1 "
)


def test_requests_arrive_when_the_load_says(monkeypatch, capsys, tmp_path):
    """Three requests, the last of them a second after the first or so: nobody is served before it comes."""
    out = tmp_path / "out.json"
    bench(monkeypatch, f"{LINE} --max-new-tokens 2 --load arrivals --rate 2 --json {out}")
    recorded = json.loads(out.read_text())
    (sample,) = recorded["samples"]
    assert (recorded["settings"]["load"], recorded["settings"]["rate"]) == ("arrivals", 2.0)
    asked = Asked((Request("", SamplingParams(2)),) * 3, load_model("data/tiny-gpt2").config, rate=2.0)
    last = make_load("arrivals", asked)[-1].arrives_at
    assert last > 0.1 and sample["seconds"] > last
