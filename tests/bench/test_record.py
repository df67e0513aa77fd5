"""Records as they are written: with machine, commit and command, and complete or not at all."""

import re

import pytest
import torch
from made_records import run_of

from labkit.bench.record import current_commit, make_record
from labkit.errors import RecordError
from labkit.results import HostTime, Record
from labkit.results.host_time import RungHostTime
from labkit.results.runs import RungRun

CPU = torch.device("cpu")


def host_time_record(rung: str = "00") -> Record:
    time = HostTime(2, 12, (1.0, 2.0), (0.1, 0.1), (0.1, 0.1))
    return make_record("host_time", CPU, 2e9, {"model": "none"}, [RungHostTime(rung, time)])


def test_a_record_names_its_machine_commit_and_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["somewhere/__main__.py", "host-time", "--steps", "2"])
    made = host_time_record()
    assert made.command == "python -m labkit.bench host-time --steps 2"
    assert made.host.torch == torch.__version__ and made.host.driver is None
    assert made.date.endswith("+00:00") and made.bandwidth == 2e9


def test_nothing_incomplete_is_written():
    with pytest.raises(RecordError, match=r"to be written lacks num_requests, .* in settings"):
        make_record("ladder", CPU, 1e9, {"model": "x"}, [RungRun("00", run_of(), 0.5)])
    empty = RungHostTime("00", HostTime(2, 12, (), (), ()))
    with pytest.raises(RecordError, match=r"written: sample 0\.step_seconds must be a list that is not"):
        make_record("host_time", CPU, 1e9, {"model": "x"}, [empty])


def test_the_commit_is_the_one_that_is_said_or_that_git_knows(monkeypatch):
    monkeypatch.setenv("LABKIT_COMMIT", "abc")
    assert current_commit() == "abc"
    monkeypatch.delenv("LABKIT_COMMIT")
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", current_commit())
