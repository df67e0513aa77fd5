"""Records as they are written: with machine, commit and command, and complete or not at all."""

import re

import pytest
import torch

from labkit.bench import record
from labkit.bench.limit import Bandwidth
from labkit.bench.record import current_commit, describe_host, make_record
from labkit.results import HostTime, Record
from labkit.results.host_time import RungHostTime

CPU = torch.device("cpu")


def host_time_record(rung: str = "00") -> Record:
    time = HostTime(2, 12, (1.0, 2.0), (0.1, 0.1), (0.1, 0.1))
    return make_record(
        "host_time", CPU, Bandwidth(2e9, 3e9), {"model": "none"}, [RungHostTime(**vars(time), rung=rung)]
    )


def test_a_record_names_its_machine_commit_and_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["somewhere/__main__.py", "host-time", "--steps", "2"])
    made = host_time_record()
    assert made.command == "python -m labkit.bench host-time --steps 2"
    assert made.host.torch == torch.__version__ and made.host.driver is None
    assert made.date.endswith("+00:00") and (made.bandwidth, made.read_bandwidth) == (2e9, 3e9)


def test_of_where_a_record_was_made_it_tells_nothing(monkeypatch):
    flags = ["--json", "/root/out/a.json", "--json=/out/b.json", "--json", "data/results/c.json", "--steps=1"]
    monkeypatch.setattr("sys.argv", ["somewhere/__main__.py", "host-time", *flags])
    assert host_time_record().command.split()[4:] == [
        *("--json", "a.json", "--json=b.json"),
        *("--json", "data/results/c.json", "--steps=1"),
    ]


CPUINFO = "processor : 0\nmodel name\t: AMD EPYC 7B13\nflags : a b\nmodel name\t: another\n"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (CPUINFO.encode(), "AMD EPYC 7B13"),
        (b"processor : 0\nFeatures : fp asimd\n", "aarch64"),  # ARM's Linux names no model
        (b"model name :   \n", "aarch64"),
        (b"\xff\xfe\nmodel name : CPU \xff\n", "CPU \ufffd"),
        (b"", "aarch64"),
    ],
)
def test_a_cpu_is_called_as_linux_calls_it(monkeypatch, tmp_path, cpuinfo, name):
    (tmp_path / "cpuinfo").write_bytes(cpuinfo)
    monkeypatch.setattr(record, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(record.platform, "processor", lambda: "")
    monkeypatch.setattr(record.platform, "machine", lambda: "aarch64")
    assert record.cpu_name() == name
    assert describe_host(CPU).device == describe_host(CPU).machine == name


def test_the_commit_is_the_one_that_is_said_or_that_git_knows(monkeypatch):
    monkeypatch.setenv("LABKIT_COMMIT", "abc")
    assert current_commit() == "abc"
    monkeypatch.delenv("LABKIT_COMMIT")
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", current_commit())
    monkeypatch.setattr(record, "has_project", lambda: False)  # the folder may lie in another repository
    assert current_commit() == "unknown"
