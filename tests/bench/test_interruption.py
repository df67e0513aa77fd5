"""Ctrl-C in a command: what is complete is kept and marked, the exit status is 130, and there is no trace."""

import pytest
from bench_commands import SMALL, refusal

from labkit.bench.host_time import TimeHost
from labkit.bench.workload import Workload
from labkit.results.files import load_file

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_with_nothing_complete_nothing_is_written(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    monkeypatch.setattr(Workload, "run", interrupted_after(5, Workload.run))
    said = refusal(monkeypatch, capsys, f"ladder {SHORT} --rungs 05,07 --json {out}", 130)
    assert said.strip().splitlines()[-1] == "Interrupted before anything was complete: nothing was written."
    assert not out.exists()
