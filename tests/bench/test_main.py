"""`python -m labkit.bench`: the write-ups' command lines, defaults and help."""

import argparse
import re
from contextlib import nullcontext

import pytest
import torch
from bench_commands import bench

from labkit.bench import __main__ as bench_main
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
