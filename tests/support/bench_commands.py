"""What the tests of `python -m labkit.bench` share."""

import shlex
import sys

import pytest

from labkit.bench import __main__ as bench_main

FEW = "--device cpu --no-prefix-cache --pretok --num-requests 3 --max-batch-size 2"
TINY = f"--model data/tiny-gpt2 {FEW}"
SMALL = f"--model random:small {FEW}"  # for what no text or layer is counted of


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
