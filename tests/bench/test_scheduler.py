"""`scheduler` and `streaming`: the write-ups' lines, a record, a trace, and what is asked for when."""

import re

import pytest
from bench_commands import NUMBER, TINY
from sockets import network_calls

from labkit import SamplingParams, load_model
from labkit.bench.loads import Asked, make_load
from labkit.bench.workload import Request
from labkit.results import Run

pytestmark = pytest.mark.slow

SCHEDULER_LINES = rf"""=== online summary ===
Warmup runs: 1
Measured runs: 2
Decode time p50/mean: {NUMBER}/{NUMBER} s
Total time p50/mean: {NUMBER}/{NUMBER} s
Throughput\(completion,decode\) p50/mean: {NUMBER}/{NUMBER} tokens/s
Throughput\(completion,total\) p50/mean: {NUMBER}/{NUMBER} tokens/s
TTFT p50/mean: {NUMBER}/{NUMBER} ms
TPOT p50/mean: {NUMBER}/{NUMBER} ms/token
Latency p50/mean: {NUMBER}/{NUMBER} ms
"""
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
# Of two runs of 12 decoded tokens, in 6 layers: each run decodes two requests, then the third, 4 steps each.
APPEND_PATHS = "{'indexed': 96, 'in_place': 144}"


def test_scheduler_prints_the_seeds_lines_and_writes_a_record(recorded, capsys):
    line = f"scheduler {TINY} --max-new-tokens 5 --no-stop-on-eos --warmup-runs 1 --repeat-runs 2"
    with network_calls() as calls:
        made = recorded(f"{line} --rung 02")
    assert calls == []
    printed = capsys.readouterr()
    assert re.search(SCHEDULER_LINES, printed.out)
    assert f"Append paths, all measured runs: {APPEND_PATHS}" in printed.out
    assert "reached" in printed.out and "tokens" in printed.err  # the limit; a progress bar
    assert [sample["tokens"] for sample in made["samples"]] == [15, 15]
    assert [sample["decoded_tokens"] for sample in made["samples"]] == [12, 12]
    assert made["settings"]["num_requests"] == 3 and made["settings"]["rung"] == "02"


def test_streaming_prints_the_seeds_lines_and_writes_a_record(recorded, capsys):
    line = f"streaming {TINY} --max-new-tokens 5 --no-stop-on-eos --warmup-runs 0 --repeat-runs 2"
    with network_calls() as calls:
        made = recorded(line)
    assert calls == []
    assert re.search(STREAMING_LINES, capsys.readouterr().out)
    assert [sample["new_tokens"] for sample in made["samples"]] == [[5, 5, 5]] * 2
    assert [len(Run.from_dict(sample).gaps_us) for sample in made["samples"]] == [12, 12]


def test_requests_arrive_when_the_load_says(recorded):
    """Three requests, the last of them a second after the first or so: nobody is served before it comes."""
    line = f"streaming {TINY} --max-new-tokens 2 --no-stop-on-eos --warmup-runs 0 --repeat-runs 1"
    made = recorded(f"{line} --load arrivals --rate 2")
    (sample,) = made["samples"]
    assert (made["settings"]["load"], made["settings"]["rate"]) == ("arrivals", 2.0)
    asked = Asked((Request("", SamplingParams(2)),) * 3, load_model("data/tiny-gpt2").config, rate=2.0)
    last = make_load("arrivals", asked)[-1].arrives_at
    assert last > 0.1 and sample["seconds"] > last
