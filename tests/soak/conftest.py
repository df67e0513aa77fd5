"""The command of these tests."""

import runpy
import sys
from pathlib import Path

import pytest


@pytest.fixture
def soak(monkeypatch):
    """A function: run a command line of `python tests/soak` in this process."""

    def run(line: str) -> None:
        monkeypatch.setattr(sys, "argv", ["tests/soak", *line.split()])
        runpy.run_path(str(Path(__file__).parent), run_name="__main__")

    return run
