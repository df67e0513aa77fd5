"""Command lines that cannot be: the parser names the argument, before anything is measured."""

import os
import shlex
import sys

import pytest
import torch
from bench_commands import assert_refused, refusal

from labkit.bench import __main__ as bench_main
from labkit.bench.commands import arguments, scheduler
from labkit.ladder import LADDER
from labkit.model.checkpoint import RANDOM_CONFIGS

ALL = tuple(bench_main.COMMANDS)
WITH_MODEL = ("profile", "device-time", "compare", "scheduler", "streaming", "ladder", "peers")
WITH_WORKLOAD = ("compare", "scheduler", "streaming", "ladder", "peers")
LONG, HUGE = "9" * 5000, "99999999999999999999"


@pytest.fixture(scope="module")
def parser():
    return bench_main.make_parser()


# --- numbers ---------------------------------------------------------------------------------------

NO_NUMBERS = ["0", "-1", "1.5", "x", "", " ", "1e3", "0x10", "nan", "inf", "True", HUGE, LONG, "\udcff"]
COUNTS = {  # flag: the most it takes
    "--num-requests": 1_000_000,
    "--max-new-tokens": 1_000_000,
    "--max-batch-size": 65_536,
    "--prefill-max-batch-size": 65_536,
    "--max-active-requests": 65_536,
    "--prefill-max-tokens": 1_000_000_000,
    "--prompt-repeats": 10_000,
    "--repeat-runs": 1_000_000,
    "--stream-interval": 1_000_000,
    "--max-inflight-requests": 1_000_000,
}


@pytest.mark.parametrize("flag", COUNTS)
def test_a_number_beyond_sense_is_refused_with_its_bound(parser, capsys, flag):
    most = COUNTS[flag]
    for value in (*NO_NUMBERS, str(most + 1)):
        said = assert_refused(parser, capsys, "streaming", flag, value)
        assert f"is not a whole number of 1 or more, {most:,} at most" in said
    given = getattr(parser.parse_args(["streaming", flag, str(most)]), flag[2:].replace("-", "_"))
    assert given in (most, (most,))


OTHER_COUNTS = [
    *(("scheduler", "--warmup-runs", value) for value in ("-1", "x", "", HUGE)),
    *(("streaming", "--tokenize-workers", value) for value in ("-1", "257", "100000", HUGE)),
    *(
        ("streaming", "--submit-interval-ms", value)
        for value in ("-1", "nan", "inf", "-inf", "x", "", "1e300")
    ),
    *(("compare", "--self-test", value) for value in NO_NUMBERS),
    *((command, "--rounds", value) for command in ("compare", "host-time", "ladder") for value in NO_NUMBERS),
    *((command, "--steps", HUGE) for command in ("profile", "host-time", "device-time")),
    *(
        (command, "--context", value)
        for command in ("profile", "device-time")
        for value in ("0", "10001", HUGE)
    ),
    *((command, "--repeats", value) for command in ("kv-append", "attention") for value in ("0", "x", HUGE)),
    *(("attention", "--contexts", value) for value in ("0", "1024", "64,5000", "64,", HUGE)),
    *(("host-time", "--prompt-lengths", value) for value in ("0", "8,x", "8,,8", "10001", HUGE)),
    *(("cost-card", "--prompt-lengths", value) for value in ("0", "20:", ":20", "20:x", "20,20:10001")),
    *(
        (command, "--batch-sizes", value)
        for command in ("profile", "cost-card", "host-time", "kv-append", "attention", "device-time")
        for value in ("0", "1,x", "1,,2", "", "65537", HUGE)
    ),
    *(("scheduler", "--prompt-repeats", value) for value in ("1,", "1,0", "1,300000000", ",", "1;2")),
]


@pytest.mark.parametrize(("command", "flag", "value"), OTHER_COUNTS)
def test_other_numbers_beyond_sense_are_refused(parser, capsys, command, flag, value):
    assert_refused(parser, capsys, command, flag, value)


@pytest.mark.parametrize("value", ["x", "", "1.5", "None", str(2**64), str(-(2**63) - 1), HUGE * 2, LONG])
@pytest.mark.parametrize("command", WITH_MODEL)
def test_a_seed_beyond_64_bits_is_refused(parser, capsys, command, value):
    assert "is not a whole number of 64 bits" in assert_refused(parser, capsys, command, "--seed", value)


@pytest.mark.parametrize("value", ["", "x", "0", "-1", "nan", "inf", "1e9", LONG])
@pytest.mark.parametrize("command", WITH_WORKLOAD)
def test_a_rate_that_is_none_is_refused(parser, capsys, command, value):
    assert "is not a number from 0.001 to 1,000,000" in assert_refused(
        parser, capsys, command, "--rate", value
    )


@pytest.mark.parametrize("command", WITH_WORKLOAD)
def test_a_load_that_is_not_there_is_refused(parser, capsys, command):
    assert "invalid choice: 'heavy'" in assert_refused(parser, capsys, command, "--load", "heavy")


@pytest.mark.parametrize("value", [0, -1, 2**64 - 1, -(2**63)])
def test_a_seed_of_64_bits_is_taken(parser, value):
    assert parser.parse_args(["scheduler", f"--seed={value}"]).seed == value


def test_prompts_of_a_length_are_made_once_whatever_their_number(monkeypatch, parser):
    """Or a million requests would be a million encodings, and as many copies of the text."""
    encoded = []

    class Model:
        device = torch.device("cpu")
        config = RANDOM_CONFIGS["gpt2"]

        class tokenizer:
            @staticmethod
            def encode(text):
                encoded.append(text)
                return [1] * len(text.split())

    monkeypatch.setattr(arguments, "model_of", lambda args: Model)
    args = parser.parse_args(["scheduler", "--num-requests=5", "--prompt-repeats=1,3", "--prompt=a"])
    workload = arguments.workload_of(args)
    assert sorted(encoded) == ["a", "a a a"]
    assert [request.prompt for request in workload.requests] == ["a", "a a a", "a", "a a a", "a"]
    assert workload.scheduler.prefill_max_tokens == 1 + 3 + 1 + 3 + 1


# --- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [b"\xff", b"Hello \xff", b"\xed\xa0\x80", b"\x80\x81"])
@pytest.mark.parametrize("command", WITH_WORKLOAD)
def test_a_prompt_that_is_no_utf8_is_refused(parser, capsys, command, prompt):
    said = assert_refused(parser, capsys, command, "--prompt", os.fsdecode(prompt))
    assert "is not valid UTF-8" in said


@pytest.mark.parametrize(
    "rungs", ["00,00", "00,01,00", "10,10,10", "", "00,", "99", "00,99", "00 01", "0", "a" * 999]
)
@pytest.mark.parametrize("command", ["ladder", "peers", "cost-card", "host-time", "device-time"])
def test_rungs_that_are_not_there_or_named_twice_are_refused(parser, capsys, command, rungs):
    assert_refused(parser, capsys, command, "--rungs", rungs)


@pytest.mark.parametrize("rungs", [tuple(LADDER), ("00",), ("05", "00")])
def test_rungs_in_any_order_are_taken(parser, rungs):
    assert parser.parse_args(["ladder", "--rungs", ",".join(rungs)]).rungs == rungs


# --- what only the command can tell ----------------------------------------------------------------


TINY = "--model data/tiny-gpt2 --device cpu"
BAD_LINES = {
    "scheduler --device cpu --model ~no-such-user": "there is no directory ~no-such-user",
    "scheduler --device cpu --model ~no-such-user/x": "there is no directory ~no-such-user/x",
    f"scheduler --device cpu --model {'a' * 5000}": "source is no directory and no hub id: 'aaa",
    "scheduler --device cpu --model ''": "source must be a directory",
    "scheduler --device cpu --model random:": "no random model 'random:'",
    "cost-card --device cpu --models ,": "source must be a directory",
    "host-time --device cpu --rungs 00 --batch-sizes 1 --steps 1000": "1000 steps do not fit",
    "host-time --device cpu --rungs 00 --batch-sizes 1 --prompt-lengths 64": "steps do not fit",
    f"streaming {TINY} --num-requests 10001": "a thread per request is for 10,000 at most",
    f"ladder {TINY} --max-new-tokens 1": "--max-new-tokens 1 decodes nothing",
    f"compare {TINY} --max-new-tokens 1": "--max-new-tokens 1 decodes nothing",
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.items(), ids=lambda x: x[:40])
def test_what_a_command_cannot_do_is_one_sentence(monkeypatch, capsys, line, message):
    said = refusal(monkeypatch, capsys, line)
    assert message in said and "Traceback" not in said


NO_DEVICES = ["banana", "", " ", "meta", "mps", "xpu", "0", "1", "-1", "gpu", "CPU", "Cuda", "cpu:7", "cuda:"]
NO_DEVICES += ["cuda:x", "cuda:-1", "cuda:0:0", "cuda:1.0", "cuda 0", "cuda,cpu", "cuda:" + LONG, "\udcff"]


@pytest.mark.slow
@pytest.mark.parametrize("device", NO_DEVICES, ids=lambda d: repr(d)[:20])
@pytest.mark.parametrize("command", ALL)
def test_a_device_that_is_neither_cpu_nor_cuda_is_refused(monkeypatch, capsys, command, device):
    said = refusal(monkeypatch, capsys, f"{command} {shlex.quote(f'--device={device}')}")
    assert "error: device must be 'cpu', 'cuda', or a GPU such as 'cuda:0', not " in said
    assert "Traceback" not in said and len(said) < 400


def test_a_gpu_that_is_not_there_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = refusal(monkeypatch, capsys, "scheduler --device cuda:2")
    assert "device 'cuda:2' is not on this machine: its GPUs are 'cuda:0' to 'cuda:1'" in said


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_the_commands_know_a_device_by_the_names_that_the_engine_knows(monkeypatch, device):
    seen = []
    monkeypatch.setattr(scheduler, "run", lambda args: seen.append(args.device))
    monkeypatch.setattr(sys, "argv", ["bench", "scheduler", "--device", device])
    bench_main.main()
    assert seen == [device]


def test_nothing_is_loaded_before_the_targets_are_tried(monkeypatch, capsys):
    monkeypatch.setattr(scheduler, "workload_of", None)
    assert "argument --json" in refusal(monkeypatch, capsys, f"scheduler {TINY} --json /")
