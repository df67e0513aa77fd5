"""Command lines that cannot be: the parser names the argument, before anything is measured."""

import os
import shlex
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
import torch

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


def refusal(parser, capsys, *words: str) -> str:
    """What the parser says of a command line that it refuses: `argument NAME: ...`."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert len(said) < 400
    return said


def assert_refused(parser, capsys, command: str, flag: str, value: str) -> str:
    said = refusal(parser, capsys, command, f"{flag}={value}")
    assert f"argument {flag}" in said
    return said


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


# --- where results go ------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "to_a_folder").symlink_to(tmp_path / "folder")
    return tmp_path


NO_FILES = [
    "",
    "folder",
    ".",
    "..",
    "/",
    "file/x",
    "file/x/y",
    "a" * 300,
    "new/" + "a" * 300,
    "a" * 300 + "/x",
]
NO_FILES += [
    "pipe",
    "pipe/x",
    "loop",
    "loop/x",
    "to_a_folder",
    "\udcff",
    "/dev/full",
    "/dev/null",
    "/dev/null/x",
]
NO_FILES += ["/proc/x/y", "/proc/x"]
NO_FOLDERS = ["", "file", "file/x", "a" * 300, "new/" + "a" * 300, "pipe", "loop", "\udcff", "/dev/full"]
NO_FOLDERS += ["/dev/null/x", "/proc/x/y", "/proc/x"]


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the paths are Linux's")
@pytest.mark.parametrize("target", NO_FILES, ids=lambda t: t[:20])
@pytest.mark.parametrize("command", ["scheduler", "kv-append", "ladder"])
def test_a_record_that_could_not_be_written_is_refused_before_the_run(
    parser, capsys, place, command, target, monkeypatch
):
    monkeypatch.chdir(place)
    before = contents(place)
    assert_refused(parser, capsys, command, "--json", target)
    assert contents(place) == before and (place / "file").read_text() == "kept"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the paths are Linux's")
@pytest.mark.parametrize("target", NO_FOLDERS, ids=lambda t: t[:20])
def test_a_trace_that_could_not_be_written_is_refused_before_the_run(
    parser, capsys, place, target, monkeypatch
):
    monkeypatch.chdir(place)
    before = contents(place)
    assert_refused(parser, capsys, "scheduler", "--profile", target)
    assert contents(place) == before


@pytest.mark.parametrize(
    ("flag", "target"),
    [
        ("--json", t)
        for t in ("new.json", "file", "folder/new.json", "a/b/c/new.json", "to_a_folder/x", "./x y.json")
    ]
    + [("--profile", t) for t in ("folder", "new", "a/b/c", "to_a_folder", ".")],
)
def test_where_results_can_go_is_tried_and_nothing_is_left_behind(parser, place, flag, target, monkeypatch):
    monkeypatch.chdir(place)
    before, touched = contents(place), (place / "file").stat().st_mtime_ns
    args = parser.parse_args(["scheduler", flag, target])
    assert Path(target) in (args.json, args.profile)
    assert contents(place) == before
    assert ((place / "file").stat().st_mtime_ns, (place / "file").read_text()) == (touched, "kept")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_written_is_refused(place):
    (place / "file").chmod(0o400)
    (place / "folder").chmod(0o500)
    for target in ("file", "folder/x"):
        with pytest.raises(ArgumentTypeError, match="Permission denied"):
            arguments.target_file(str(place / target))


# --- what only the command can tell ----------------------------------------------------------------


def ended(monkeypatch, capsys, line: str) -> str:
    monkeypatch.setattr(sys, "argv", ["bench", *shlex.split(line)])
    with pytest.raises(SystemExit) as end:
        bench_main.main()
    assert end.value.code == 2
    return capsys.readouterr().err


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
    said = ended(monkeypatch, capsys, line)
    assert message in said and "Traceback" not in said


NO_DEVICES = ["banana", "", " ", "meta", "mps", "xpu", "0", "1", "-1", "gpu", "CPU", "Cuda", "cpu:7", "cuda:"]
NO_DEVICES += ["cuda:x", "cuda:-1", "cuda:0:0", "cuda:1.0", "cuda 0", "cuda,cpu", "cuda:" + LONG, "\udcff"]


@pytest.mark.slow
@pytest.mark.parametrize("device", NO_DEVICES, ids=lambda d: repr(d)[:20])
@pytest.mark.parametrize("command", ALL)
def test_a_device_that_is_neither_cpu_nor_cuda_is_refused(monkeypatch, capsys, command, device):
    said = ended(monkeypatch, capsys, f"{command} {shlex.quote(f'--device={device}')}")
    assert "error: device must be 'cpu', 'cuda', or a GPU such as 'cuda:0', not " in said
    assert "Traceback" not in said and len(said) < 400


def test_a_gpu_that_is_not_there_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = ended(monkeypatch, capsys, "scheduler --device cuda:2")
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
    assert "argument --json" in ended(monkeypatch, capsys, f"scheduler {TINY} --json /")
