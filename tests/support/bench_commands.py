"""What the tests of `python -m labkit.bench` share."""

import shlex
import sys

import pytest

from labkit.bench import __main__ as bench_main

TINY = "--model data/tiny-gpt2 --device cpu --no-prefix-cache --pretok --num-requests 3 --max-batch-size 2"


def bench(monkeypatch, line: str) -> None:
    """Run a command line in this process."""
    monkeypatch.setattr(sys, "argv", ["bench", *shlex.split(line)])
    bench_main.main()


def refusal(monkeypatch, capsys, line: str, code: int = 2) -> str:
    """What a command line that ends with this status says."""
    with pytest.raises(SystemExit) as ended:
        bench(monkeypatch, line)
    assert ended.value.code == code
    return capsys.readouterr().err


NUMBER = r"\d+\.\d+"


def parser_refusal(parser, capsys, *words: str) -> str:
    """What the parser says of a command line that it refuses: `argument NAME: ...`."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert len(said) < 400
    return said


def assert_refused(parser, capsys, command: str, flag: str, value: str) -> str:
    said = parser_refusal(parser, capsys, command, f"{flag}={value}")
    assert f"argument {flag}" in said
    return said
