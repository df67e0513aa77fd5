"""`python -m labkit.bench`: the seeds' command lines, what is printed and recorded, and what is refused."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from labkit import LADDER
from labkit.bench import __main__ as bench_main
from labkit.bench import record
from labkit.bench.workload import gaps_us
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

SEED_036 = """scheduler --hf-model-id gpt2 --device cuda
  --prompt "Hello" --num-requests 64 --max-new-tokens 512
  --mode online --max-batch-size 64 --no-stop-on-eos --no-prefix-cache --pretok
  --warmup-runs 1 --repeat-runs 3 --paged-attn"""
SEED_062 = """streaming --hf-model-id gpt2 --device cuda --prompt 'Hello' --prompt-repeats '1,4'
  --pretok --tokenize-workers 0 --num-requests 128 --max-new-tokens 128 --submit-interval-ms 0
  --max-batch-size 128 --prefill-max-batch-size 128 --prefill-admission-policy fifo
  --paged-attn --no-prefix-cache --no-stop-on-eos --warmup-runs 1 --repeat-runs 3"""
SEED_064 = """streaming --prompt "Hello" --prompt-repeats "1,4" --pretok --num-requests 128
  --max-new-tokens 128 --no-stop-on-eos --no-prefix-cache --paged-attn --warmup-runs 1 --repeat-runs 3"""
OTHER_FLAGS = """--decode-first --prefill-max-tokens 64 --prefill-admission-policy pack
  --max-active-requests 4 --nvtx --profile traces --rung 00 --json out.json --seed 3"""
STREAMING_FLAGS = (
    "--max-inflight-requests 9 --stream-interval 2 --submit-interval-ms 0.5 --tokenize-workers 2"
)
TINY = "--model data/tiny-gpt2 --device cpu --no-prefix-cache --pretok --num-requests 3 --max-batch-size 2"


def bench(monkeypatch, line: str) -> None:
    """Run a command line in this process."""
    monkeypatch.setattr(sys, "argv", ["bench", *shlex.split(line)])
    bench_main.main()


def refusal(monkeypatch, capsys, line: str) -> str:
    with pytest.raises(SystemExit) as ended:
        bench(monkeypatch, line)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("line", [SEED_036, SEED_062, SEED_064], ids=["036", "062", "064"])
def test_the_seeds_command_lines_are_understood_as_they_stand(line):
    args = bench_main.make_parser().parse_args(shlex.split(line))
    assert args.num_requests in (64, 128) and args.max_new_tokens in (512, 128)
    assert args.no_stop_on_eos and args.no_prefix_cache and args.pretok
    assert (args.warmup_runs, args.repeat_runs) == (1, 3)


def test_the_seeds_defaults_hold():
    args = bench_main.make_parser().parse_args(shlex.split(SEED_064))
    assert args.max_batch_size == 8 and args.prompt_repeats == (1, 4)
    assert args.model == "random:gpt2"


@pytest.mark.parametrize("line", [f"scheduler {OTHER_FLAGS}", f"streaming {OTHER_FLAGS} {STREAMING_FLAGS}"])
def test_every_flag_is_there(line):
    args = bench_main.make_parser().parse_args(shlex.split(line))
    assert args.decode_first and args.prefill_admission_policy == "pack" and args.max_active_requests == 4


NUMBER = r"\d+\.\d+"
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
    bench(monkeypatch, f"{line} --rung {rung}")
    printed = capsys.readouterr()
    assert re.search(SCHEDULER_LINES, printed.out)
    assert f"Append paths, all measured runs: {append_paths}" in printed.out
    assert "reached" in printed.out and "tokens" in printed.err  # the limit; a progress bar
    recorded = json.loads(out.read_text())
    record.check_record("out", recorded)
    assert [sample["tokens"] for sample in recorded["samples"]] == [15, 15]
    assert [sample["decoded_tokens"] for sample in recorded["samples"]] == [12, 12]
    assert recorded["settings"]["num_requests"] == 3 and recorded["settings"]["rung"] == rung


@pytest.mark.parametrize("command", ["scheduler", "streaming"])
def test_the_last_rung_runs_unless_another_is_asked_for(command):
    assert bench_main.make_parser().parse_args([command]).rung == "10"


@pytest.mark.parametrize("command", ["ladder", "host-time", "cost-card", "device-time"])
def test_a_command_for_all_rungs_measures_no_engine_twice(command):
    rungs = bench_main.make_parser().parse_args([command]).rungs
    assert rungs == tuple(LADDER) and len({LADDER[number].options for number in rungs}) == len(rungs)


def test_compare_is_about_the_last_rung_and_the_one_below_it():
    args = bench_main.make_parser().parse_args(["compare"])
    assert (args.before, args.after) == ("09", "10")


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
    bench(monkeypatch, line)
    assert re.search(STREAMING_LINES, capsys.readouterr().out)
    recorded = json.loads(out.read_text())
    record.check_record("out", recorded)
    assert [sample["new_tokens"] for sample in recorded["samples"]] == [[5, 5, 5]] * 2
    assert [len(gaps_us(sample)) for sample in recorded["samples"]] == [12, 12]


def test_streaming_says_how_many_it_refused(monkeypatch, capsys):
    line = f"streaming {TINY} --max-new-tokens 30 --no-stop-on-eos --warmup-runs 0 --repeat-runs 1 "
    bench(monkeypatch, line + "--max-inflight-requests 1")
    printed = capsys.readouterr().out
    assert "Refused for --max-inflight-requests, a run: [2]" in printed
    assert "Completion tokens a run: [30]" in printed


def test_streaming_hands_out_chunks_of_the_interval_asked_for(monkeypatch, tmp_path):
    out = tmp_path / "out.json"
    line = (
        f"streaming {TINY} --max-new-tokens 7 --no-stop-on-eos --warmup-runs 0 --repeat-runs 1 --json {out}"
    )
    bench(monkeypatch, line + " --stream-interval 3 --tokenize-workers 2 --submit-interval-ms 1")
    (sample,) = json.loads(out.read_text())["samples"]
    assert sample["new_tokens"] == [7, 7, 7]
    assert len(gaps_us(sample)) == 3 * 2  # chunks of 3, 3 and 1


def test_a_trace_of_the_decode_is_written(monkeypatch, capsys, tmp_path):
    line = (
        f"scheduler {TINY} --max-new-tokens 3 --warmup-runs 0 --repeat-runs 1 --profile {tmp_path / 'traces'}"
    )
    bench(monkeypatch, line + " --rung 00")
    events = json.loads((tmp_path / "traces" / "scheduler_rung00.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "labkit.model.forward" for event in events) == 5


def test_ladder_runs_every_rung_in_turn_and_records_them(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"ladder {TINY} --max-new-tokens 4 --no-stop-on-eos --rounds 1 --json {out}")
    printed = capsys.readouterr().out
    assert all(rung.title in printed for rung in LADDER.values())
    recorded = json.loads(out.read_text())
    record.check_record("out", recorded)
    assert [sample["rung"] for sample in recorded["samples"]] == [n for n in LADDER for _ in range(2)]


def test_compare_prints_a_verdict_and_warns_of_a_path_that_never_ran(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    line = f"compare {TINY} --max-new-tokens 4 --no-stop-on-eos --rounds 1 --json {out}"
    bench(monkeypatch, f"{line} --before 00 --after 00,attention=plain --path copy_on_write")
    printed = capsys.readouterr().out
    assert re.search(r"00 -> 00,attention=plain: x\d+\.\d+ \[.*\], too few rounds for a verdict", printed)
    assert "WARNING: path 'copy_on_write' never ran" in printed
    assert re.search(r"Limit of decode: .* s at .* GB/s; reached \d+\.\d %", printed)
    (sample,) = json.loads(out.read_text())["samples"]
    assert len(sample["comparison"]["before_samples"]) == 2 and sample["limit_seconds"] > 0


def test_the_instrument_can_be_tested_on_itself(monkeypatch, capsys):
    line = f"compare {TINY} --max-new-tokens 3 --no-stop-on-eos --self-test 2"
    bench(monkeypatch, f"{line} --rounds 1")
    too_few = "A/A self-test, 2 comparisons: 2 'too few rounds for a verdict (2 needed)'"
    assert capsys.readouterr().out.splitlines()[-1] == too_few
    bench(monkeypatch, f"{line} --rounds 2")
    last = capsys.readouterr().out.splitlines()[-1]
    verdicts = re.findall(r"(\d) '(cannot tell|faster|slower)'", last)
    assert last.startswith("A/A self-test, 2 comparisons: ") and sum(int(n) for n, _ in verdicts) == 2


def test_host_time_prints_rungs_by_batch_size(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"host-time --device cpu --batch-sizes 1,2 --steps 3 --rounds 1 --json {out}")
    printed = capsys.readouterr().out
    assert "B = 1" in printed and "00 step" in printed
    recorded = json.loads(out.read_text())
    record.check_record("out", recorded)
    made = [(sample["rung"], sample["batch_size"]) for sample in recorded["samples"]]
    assert made == [(rung, b) for rung in LADDER for b in (1, 1, 2, 2)]


def test_kv_append_times_every_path_at_every_size(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    bench(monkeypatch, f"kv-append --device cpu --batch-sizes 1,2 --repeats 2 --json {out}")
    assert "full_batch (us)" in capsys.readouterr().out
    recorded = json.loads(out.read_text())
    record.check_record("out", recorded)
    paths = ["indexed", "generic", "full_batch", "identity_pos"]
    assert [(s["batch_size"], s["path"]) for s in recorded["samples"]] == [
        (b, p) for b in (1, 2) for p in paths
    ]
    assert recorded["samples"][0]["num_bytes"] == 2 * 2 * 12 * 64 * 4  # keys, values; read, written


def test_cost_card_counts_every_rung_and_batch(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(record, "RESULTS", tmp_path)  # the GPU's rows are looked for in every record there is
    out = tmp_path / "out.json"
    line = "cost-card --device cpu --models data/tiny-gpt2 --batch-sizes 1,2 --prompt-lengths 20:20,23"
    bench(monkeypatch, f"{line} --json {out}")
    assert "calls into KVBlockManager" in capsys.readouterr().out
    recorded = json.loads(out.read_text())
    record.check_record("out", recorded)
    lengths = [sample["key"]["prompt_lens"] for sample in recorded["samples"] if sample["rung"] == "00"]
    assert lengths == [[20], [20], [20, 20], [20, 23]]


def test_profile_writes_a_record(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    line = "profile --model data/tiny-gpt2 --device cpu --rung 00 --batch-sizes 1,2 --context 8 --steps 2"
    bench(monkeypatch, f"{line} --json {out}")
    recorded = json.loads(out.read_text())
    assert [s["batch_size"] for s in recorded["samples"]] == [1, 2]
    assert [s["append_paths"] for s in recorded["samples"]] == [{"in_place": 12}, {"in_place": 24}]
    assert "of the limit" in capsys.readouterr().out


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scheduler --num-requests 0", "'0' is not a whole number of 1 or more"),
        ("scheduler --warmup-runs -1", "'-1' is not a whole number of 0 or more"),
        ("scheduler --prompt-repeats 1,x", "'x' is not a whole number"),
        ("scheduler --mode offline", "invalid choice: 'offline'"),
        ("scheduler --rung 99", "invalid choice: '99'"),
        ("streaming --submit-interval-ms -1", "'-1' is not a time of 0 ms or more"),
        ("ladder --rungs 00,99", "there is no rung '99'"),
        ("compare --before 00,attention=magic", "attention = 'magic' is not an option"),
        ("compare --after 00,colour=red", "'colour' is not an option; there are attention"),
        ("scheduler --model data/nowhere/at/all", "there is no directory data/nowhere/at/all"),
        (f"scheduler {TINY} --max-new-tokens 5000", "the model has 1024 positions: shorten one by"),
        (f"scheduler {TINY} --prompt ''", "the prompt is empty"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_change(monkeypatch, capsys, line, message):
    assert message in refusal(monkeypatch, capsys, line)


@pytest.mark.parametrize("command", ["scheduler", "streaming", "ladder", "compare", "profile", "host-time"])
def test_cuda_without_a_gpu_is_refused(monkeypatch, capsys, command):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "device 'cuda' needs a CUDA GPU" in refusal(monkeypatch, capsys, f"{command} --device cuda")


def test_nvtx_without_a_gpu_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "NVTX ranges need a CUDA GPU" in refusal(monkeypatch, capsys, f"scheduler {TINY} --nvtx")


def test_a_triton_kernel_without_triton_is_refused(monkeypatch, capsys):
    from labkit.kernels import triton_runtime

    monkeypatch.setattr(triton_runtime, "STATUS", triton_runtime.TritonStatus("off", "there is none here"))
    line = f"compare {TINY} --max-new-tokens 3 --after 00,attention=triton"
    assert "there is none here. The plain PyTorch path needs no Triton" in refusal(monkeypatch, capsys, line)


@pytest.mark.parametrize("command", bench_main.COMMANDS)
def test_help_explains_each_command(monkeypatch, capsys, command):
    with pytest.raises(SystemExit) as ended:
        bench(monkeypatch, f"{command} --help")
    assert ended.value.code == 0 and "--json" in capsys.readouterr().out


def test_help_says_where_figures_differ_from_the_seeds(monkeypatch, capsys):
    for command in ("scheduler", "streaming"):
        with pytest.raises(SystemExit):
            bench(monkeypatch, f"{command} --help")
        said = " ".join(capsys.readouterr().out.split())
        assert "means something else than" in said and "counted as ids" in said


def test_the_module_runs_as_a_command():
    ran = subprocess.run(
        [sys.executable, "-m", "labkit.bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(command in ran.stdout for command in bench_main.COMMANDS)


@pytest.mark.cuda
@pytest.mark.parametrize("line", [SEED_036, SEED_062, SEED_064], ids=["036", "062", "064"])
def test_the_seeds_command_lines_run_on_a_gpu(monkeypatch, capsys, line):
    """As they stand, but for the weights and the length, which take minutes."""
    tail = " --hf-model-id random:gpt2 --max-new-tokens 4 --warmup-runs 0 --repeat-runs 1"
    bench(monkeypatch, line + tail)
    assert "summary ===" in capsys.readouterr().out
