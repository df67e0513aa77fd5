"""`python -m labkit.bench`: defaults, help, the write-ups' command lines, what is recorded, and Ctrl-C."""

import argparse
import re
from contextlib import nullcontext

import pytest
import torch
from bench_commands import SMALL, bench, refusal

from labkit import LADDER
from labkit.bench import __main__ as bench_main
from labkit.bench.host_time import TimeHost
from labkit.bench.workload import Workload
from labkit.results.files import load_file, record_of
from labkit.results.published import published_figures

pytestmark = pytest.mark.slow

SEEDS = published_figures()["command"].dropna().unique()  # as they stand in the write-ups


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_cpu_a_command_takes_a_small_model_and_says_so(monkeypatch, capsys, device):
    monkeypatch.setattr(bench_main, "pick_device", lambda asked: torch.device(device))
    monkeypatch.setattr(bench_main, "current_device", nullcontext)
    seen = []
    monkeypatch.setattr(bench_main.COMMANDS["ranks"], "run", lambda self: seen.append(self))
    bench(monkeypatch, "ranks")
    bench(monkeypatch, "ranks --model random:gpt2 --batch-sizes 2 --prompt-tokens 4 --max-new-tokens 4")
    small = [("data/tiny-gpt2", (1, 4)), ("random:gpt2", (2,))]
    full = [("random:gpt2", (1, 32)), ("random:gpt2", (2,))]
    assert [(args.model, args.batch_sizes) for args in seen] == (small if device == "cpu" else full)
    taken = "--model data/tiny-gpt2 --batch-sizes 1,4 --prompt-tokens 8 --max-new-tokens 16"
    said = f"On a CPU this command takes {taken}, unless you say otherwise."
    assert capsys.readouterr().out == (f"{said}\n" if device == "cpu" else "")


# --- refusals --------------------------------------------------------------------------------------


def options_of(command: str) -> list[argparse.Action]:
    """A command's options, without -h."""
    (commands,) = [a for a in bench_main.make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return [action for action in commands.choices[command]._actions if action.dest != "help"]


@pytest.mark.parametrize("command", bench_main.COMMANDS)
def test_help_explains_every_option_and_says_its_default(monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        bench(monkeypatch, f"{command} --help")
    said = " ".join(capsys.readouterr().out.split())
    for option in options_of(command):
        assert option.help, option.option_strings
        if option.nargs == 0:  # a switch, which is off
            assert option.default is False
        elif option.default is None:  # what that means is said in words
            assert re.search(r"\(default: [^)]+\)$", option.help), option.option_strings
        else:
            assert option.help % {"default": option.default} in said
            assert "(default: " in option.help and str(option.default) in option.help % vars(option)


@pytest.mark.cuda
@pytest.mark.parametrize("line", SEEDS)
def test_the_seeds_command_lines_run_on_a_gpu(monkeypatch, capsys, line):
    """As they stand, but for the weights and the length, which take minutes."""
    tail = " --hf-model-id random:gpt2 --max-new-tokens 4 --warmup-runs 0 --repeat-runs 1"
    bench(monkeypatch, line + tail)
    assert "summary ===" in capsys.readouterr().out


# --- what is printed, and the samples of the record ------------------------------------------------------

# The command line, what it prints, the fields of each sample, and their values, or how many it has of times.
RUNS = {
    "host-time": (
        *("--device cpu --batch-sizes 1,2 --steps 3 --rounds 1", "microseconds of a step"),
        ("rung", "batch_size", "step_seconds"),
        [(rung, b, 3) for rung in LADDER for b in (1, 1, 2, 2)],
    ),
    "ladder": (
        *(f"{SMALL} --load alike --max-new-tokens 4 --no-stop-on-eos --rounds 1", "decode tokens/s"),
        *(("rung",), [(rung,) for rung in LADDER for _ in range(2)]),
    ),
}


@pytest.mark.parametrize("command", RUNS)
def test_a_command_prints_a_table_and_writes_a_record(recorded, capsys, command):
    line, said, fields, expected = RUNS[command]
    made = recorded(f"{command} {line}")
    assert said in capsys.readouterr().out
    assert made["kind"] == command.replace("-", "_")
    samples = [[sample[field] for field in fields] for sample in made["samples"]]
    assert [tuple(len(v) if isinstance(v, list) else v for v in values) for values in samples] == expected


def test_on_a_cpu_the_ladder_serves_an_assistants_users_and_compares_whole_runs(recorded, capsys):
    made = recorded("ladder --device cpu --rungs 13,14 --num-requests 3 --rounds 1")
    head, *_ = (line for line in capsys.readouterr().out.splitlines() if "over the rung below" in line)
    assert head.split()[:2] == ["tokens/s", "over"]  # and not decode tokens/s
    record = record_of(made, "out")
    asked = ("load", "num_requests", "max_new_tokens", "max_batch_size")
    assert [record.settings[name] for name in asked] == ["assistant", 3, 32, 16]
    (before, _), (after, _) = record.runs_of("13"), record.runs_of("14")
    assert before.new_tokens == after.new_tokens and min(before.prompt_lens) > 512
    assert record.throughputs["14"] == [run.tokens / run.seconds for run in record.runs_of("14")]
    assert record.throughput("14") == sum(record.throughputs["14"]) / 2


# --- Ctrl-C: what is complete is kept and marked, the exit status is 130, and there is no trace ------------

HOST = "--device cpu --rungs 05,07 --rounds 1 --steps 2 --batch-sizes 1,2"
SHORT = f"{SMALL} --max-new-tokens 2 --no-stop-on-eos"


def interrupted_after(calls: int, function):
    """The function, which Ctrl-C stops once it was called so many times."""
    left = iter(range(calls))

    def call(*args, **kwargs):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("line", "module", "name", "calls", "kept"),
    [
        (f"host-time {HOST}", TimeHost, "one_run", 6, 4),
        (f"ladder {SHORT} --rungs 05,07 --rounds 2", Workload, "run", 8, 4),
        (f"compare {SHORT} --before 05 --after 07 --rounds 2", Workload, "run", 8, 1),
    ],
    ids=["host-time", "ladder", "compare"],
)
def test_what_is_complete_is_recorded_and_marked(
    monkeypatch, capsys, tmp_path, line, module, name, calls, kept
):
    monkeypatch.setattr(module, name, interrupted_after(calls, getattr(module, name)))
    out = tmp_path / "out.json"
    said = refusal(monkeypatch, capsys, f"{line} --json {out}", 130)
    assert said.strip().splitlines()[-1].startswith("Interrupted: the figures, and the record")
    record = load_file(out)
    assert record.settings["interrupted"] is True and len(record.samples) == kept


def test_with_nothing_complete_nothing_is_written(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    monkeypatch.setattr(Workload, "run", interrupted_after(5, Workload.run))
    said = refusal(monkeypatch, capsys, f"ladder {SHORT} --rungs 05,07 --json {out}", 130)
    assert said.strip().splitlines()[-1] == "Interrupted before anything was complete: nothing was written."
    assert not out.exists()
