"""A command that writes a record."""

import json

import pytest
from bench_commands import bench

from labkit.results.files import record_of


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A function: run a command line; the JSON of the record that it wrote, which can be read."""

    def run(line: str) -> dict:
        path = tmp_path / "out.json"
        bench(monkeypatch, f"{line} --json {path}")
        raw = json.loads(path.read_text())
        record_of(raw, "out")
        return raw

    return run
