"""`scheduler`: the write-ups' lines, a record, a trace."""

import json
import re

import pytest
from bench_commands import NUMBER, TINY, bench
from sockets import network_calls

from labkit.results.files import record_of

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
# Of two runs of 12 decoded tokens, in 6 layers: each run decodes two requests, then the third, 4 steps each.
APPEND_PATHS = {
    "00": "{'in_place': 144}",
    "02": "{'indexed': 96, 'in_place': 144}",
    "05": "{'full_batch': 96, 'in_place': 144}",
}


@pytest.mark.parametrize(("rung", "append_paths"), APPEND_PATHS.items())
def test_scheduler_prints_the_seeds_lines_and_writes_a_record(
    monkeypatch, capsys, tmp_path, rung, append_paths
):
    out = tmp_path / "out.json"
    line = (
        f"scheduler {TINY} --max-new-tokens 5 --no-stop-on-eos --warmup-runs 1 --repeat-runs 2 --json {out}"
    )
    with network_calls() as calls:
        bench(monkeypatch, f"{line} --rung {rung}")
    assert calls == []
    printed = capsys.readouterr()
    assert re.search(SCHEDULER_LINES, printed.out)
    assert f"Append paths, all measured runs: {append_paths}" in printed.out
    assert "reached" in printed.out and "tokens" in printed.err  # the limit; a progress bar
    recorded = json.loads(out.read_text())
    record_of(recorded, "out")
    assert [sample["tokens"] for sample in recorded["samples"]] == [15, 15]
    assert [sample["decoded_tokens"] for sample in recorded["samples"]] == [12, 12]
    assert recorded["settings"]["num_requests"] == 3 and recorded["settings"]["rung"] == rung


def test_a_trace_of_the_decode_is_written(monkeypatch, capsys, tmp_path):
    line = (
        f"scheduler {TINY} --max-new-tokens 3 --warmup-runs 0 --repeat-runs 1 --profile {tmp_path / 'traces'}"
    )
    bench(monkeypatch, line + " --rung 00")
    events = json.loads((tmp_path / "traces" / "scheduler_rung00.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "labkit.model.forward" for event in events) == 5


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "lengths"), [("sampled", [1, 1, 1]), ("prompt-heavy", [512] * 3), ("shared-prefix", [544] * 3)]
)
def test_a_load_by_its_name_is_what_is_served_and_recorded(monkeypatch, tmp_path, load, lengths):
    out = tmp_path / "out.json"
    line = f"scheduler {TINY} --prompt a --load {load} --max-new-tokens 3 --no-stop-on-eos --warmup-runs 0"
    bench(monkeypatch, f"{line} --repeat-runs 1 --json {out}")
    recorded = json.loads(out.read_text())
    assert recorded["settings"]["load"] == load
    assert recorded["samples"][0]["prompt_lens"] == lengths
