"""`python -m labkit.bench`: the write-ups' command lines, defaults, help, and what is refused."""

import argparse
import re
import shlex
from contextlib import nullcontext

import pytest
import torch
from bench_commands import bench

from labkit import LADDER
from labkit.bench import __main__ as bench_main

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


@pytest.mark.parametrize("line", [SEED_036, SEED_062, SEED_064], ids=["036", "062", "064"])
def test_the_seeds_command_lines_are_understood_as_they_stand(line):
    args = bench_main.make_parser().parse_args(shlex.split(line))
    assert args.num_requests in (64, 128) and args.max_new_tokens in (512, 128)
    assert args.no_stop_on_eos and args.no_prefix_cache and args.pretok
    assert (args.warmup_runs, args.repeat_runs) == (1, 3)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_cpu_a_command_takes_a_small_model_and_says_so(monkeypatch, capsys, device):
    monkeypatch.setattr(bench_main, "pick_device", lambda asked: torch.device(device))
    monkeypatch.setattr(bench_main, "current_device", nullcontext)
    seen = []
    monkeypatch.setattr(bench_main.COMMANDS["profile"], "run", seen.append)
    bench(monkeypatch, "profile")
    bench(monkeypatch, "profile --model random:gpt2 --batch-sizes 2")
    small = [("data/tiny-gpt2", (1, 4, 16)), ("random:gpt2", (2,))]
    full = [("random:gpt2", (1, 8, 64)), ("random:gpt2", (2,))]
    assert [(args.model, args.batch_sizes) for args in seen] == (small if device == "cpu" else full)
    said = (
        "On a CPU this command takes --model data/tiny-gpt2 --batch-sizes 1,4,16, unless you say otherwise."
    )
    assert capsys.readouterr().out == (f"{said}\n" if device == "cpu" else "")


@pytest.mark.parametrize("command", ["ladder", "host-time", "cost-card", "device-time"])
def test_a_command_for_all_rungs_measures_no_engine_twice(command):
    rungs = bench_main.make_parser().parse_args([command]).rungs
    assert rungs == tuple(LADDER) and len({LADDER[number].options for number in rungs}) == len(rungs)


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
@pytest.mark.parametrize("line", [SEED_036, SEED_062, SEED_064], ids=["036", "062", "064"])
def test_the_seeds_command_lines_run_on_a_gpu(monkeypatch, capsys, line):
    """As they stand, but for the weights and the length, which take minutes."""
    tail = " --hf-model-id random:gpt2 --max-new-tokens 4 --warmup-runs 0 --repeat-runs 1"
    bench(monkeypatch, line + tail)
    assert "summary ===" in capsys.readouterr().out
