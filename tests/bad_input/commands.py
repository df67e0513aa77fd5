"""Command lines of `python -m labkit.bench` and `python -m labkit.doctor`: the flag is named, and nothing is
measured, loaded or written."""

import argparse
import os
import shlex
from unittest import mock

from bad_input import lines_of

from labkit import doctor
from labkit.bench import __main__ as bench
from labkit.paths import ROOT

HUGE, LONG, NO_UTF8 = "99999999999999999999", "9" * 5000, os.fsdecode(b"\xff")
NO_WHOLE = ("-1", "1.5", "x", "", HUGE)
NO_COUNT = ("0", *NO_WHOLE, "1e3", "0x10", "nan", "inf", "True", "None", LONG, NO_UTF8)
NO_DEVICE = ("''", "banana", "meta", "mps", "0", "-1", "CPU", "cpu:7", "cuda:", "cuda:x", "cuda:-1", NO_UTF8)
TINY = "--model data/tiny-gpt2 --device cpu"
PARSER = bench.make_parser()
(ALL,) = (action.choices for action in PARSER._actions if isinstance(action, argparse._SubParsersAction))
OF_TYPE = {  # wrong values of every flag, by the function that reads it
    "whole_number": NO_WHOLE,
    "list_of": ("1,x", "1,,2", "1,", ",", "", "1;2", "-1", HUGE),
    "real_number": ("", "x", "-1", "nan", "inf", "1e300", LONG),
    "utf8": (NO_UTF8, os.fsdecode(b"Hello \xff"), os.fsdecode(b"\xed\xa0\x80")),
    "names_of": ("", "best", "prefix,", "00,00", "00,", "99", "00,99", "00 01", "[]", "a" * 999),
    "target_file": ("", "/", ".", "/dev/null/x", "/proc/x/y", f"{ROOT}/pyproject.toml/x", NO_UTF8),
}
FLAGS = [  # command, flag, values
    *(
        (command, action.option_strings[-1], values)
        for command, parser in ALL.items()
        for action in parser._actions
        if action.option_strings
        and (
            values := ("fibers", "")
            if action.choices
            else OF_TYPE.get(getattr(action.type, "__qualname__", "").split(".")[0])
        )
    ),
    ("streaming", "--num-requests", NO_COUNT),
    ("streaming", "--max-batch-size", ("65537",)),
    ("ladder", "--max-new-tokens", ("1",)),
    ("streaming", "--prompt-repeats", ("300000000",)),
    ("streaming", "--tokenize-workers", ("257",)),
    ("ranks", "--prompt-tokens", ("10001",)),
    ("loads", "--rate", ("0", "1e9")),
]
LINES = [  # what only the command as a whole can tell
    *((f"scheduler --device={device}", "device must be 'cpu', 'cuda', or a GPU") for device in NO_DEVICE),
    *((f"{command} --device banana", "device must be 'cpu', 'cuda', or a GPU") for command in ALL),
    *((f"{command} --colour red", "--colour") for command in ALL),
    *((f"{command} --json", "--json") for command in ALL),
    ("", "COMMAND"),
    ("scheduler --device cpu --model ~no-such-user", "no directory ~no-such-user"),
    (f"scheduler --device cpu --model {'a' * 5000}", "source is no directory and no hub id"),
    ("scheduler --device cpu --model ''", "source must be a directory"),
    ("host-time --device cpu --rungs 00 --batch-sizes 1 --steps 1000", "1000 steps do not fit"),
    (f"streaming {TINY} --num-requests 10001", "a thread per request is for 10,000 at most"),
    (f"scheduler {TINY} --prompt ''", "the prompt is empty"),
    ("compare --before 00,attention=magic", "attention = 'magic'"),
    ("compare --after 00,colour=red", "'colour' is not an option"),
    (f"scheduler {TINY} --load arrivals", "rate|streaming"),
    (f"scheduler {TINY} --load arrivals --rate 9", "`streaming` and `loads` only"),
    (f"streaming {TINY} --rate 9", "--load arrivals and --rate"),
    (f"streaming {TINY} --load arrivals --rate 2 --submit-interval-ms 5", "-ms and --load arrivals both say"),
    (f"tune {TINY}", "tiles are measured on a CUDA GPU with Triton: this command has no use on the CPU"),
    (f"loads {TINY} --max-new-tokens 5000", "load sampled has texts of up to 50.. tokens"),
    ("peers --model data/tiny-gpt2", "add --no-stop-on-eos"),
    ("ranks --device cpu --model random:small", "start it by torchrun --nproc-per-node N"),
    ("schedulr", "invalid choice: 'schedulr' \\(choose from"),
    ("peers --colour red", "unrecognized arguments: --colour red; --help lists the flags"),
]
DOCTOR = [("--colour red", "--colour"), ("here", "here")]


def main() -> None:
    """The commands' own, with a parser that is made once for all lines."""
    with mock.patch.object(bench, "make_parser", lambda: PARSER):
        bench.main()


CASES = [
    *lines_of(
        main,
        "python -m labkit.bench",
        [
            *dict.fromkeys(
                (f"{c} {shlex.quote(f'{flag}={value}')}", f"argument {flag}")
                for c, flag, values in FLAGS
                for value in values
            ),
            *LINES,
        ],
    ),
    *lines_of(doctor.main, "python -m labkit.doctor", DOCTOR),
]
