"""Records as they are written: with machine, commit and command, and where they go: what cannot be written is
refused before anything is measured."""

import os
import re
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
import torch
from bench_commands import bench

from labkit import paths
from labkit.bench import __main__ as bench_main
from labkit.bench import record
from labkit.bench.limit import Bandwidth
from labkit.bench.record import current_commit, describe_host, make_record
from labkit.errors import OptionError
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


# --- where it goes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parser():
    return bench_main.make_parser()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to_a_folder").symlink_to(tmp_path / "folder")
    return tmp_path


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "target", ("new.json", "file", "folder/new.json", "a/b/c/new.json", "to_a_folder/x", "./x y.json")
)
def test_where_results_can_go_is_tried_and_nothing_is_left_behind(parser, place, target, monkeypatch):
    monkeypatch.chdir(place)
    before, touched = contents(place), (place / "file").stat().st_mtime_ns
    assert parser.parse_args(["compare", "--json", target]).json == Path(target)
    assert contents(place) == before
    assert ((place / "file").stat().st_mtime_ns, (place / "file").read_text()) == (touched, "kept")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_written_is_refused(place):
    (place / "file").chmod(0o400)
    (place / "folder").chmod(0o500)
    for target in ("file", "folder/x"):
        with pytest.raises(ArgumentTypeError, match="Permission denied"):
            record.target_file(str(place / target))


# --- the record of this machine --------------------------------------------------------------------


@pytest.fixture
def results(monkeypatch, tmp_path) -> Path:
    """data/results, empty; the machine's CPU is of a well-known kind."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "device_name", lambda device: "Intel(R) Core(TM) i7-1185G7 @ 3.00GHz")
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../etc/passwd\0", "etc_passwd"),
        ("龙芯", "unknown"),
        ("a b" * 99, ("a_b" * 20)),
    ],
)
def test_a_slug_is_safe_in_any_file_system(name, expected):
    assert paths.slug(name) == expected


def test_a_place_that_cannot_be_written_is_refused_with_a_way_out(results):
    results.write_text("in the way")
    with pytest.raises(OptionError, match=r"cannot write .*: Not a directory. Name a file with --json"):
        record.own_target("ladder", CPU)


@pytest.mark.slow
def test_a_command_ends_by_saying_where_its_record_is_and_what_draws_it(results, monkeypatch, capsys):
    line = "host-time --device cpu --rungs 10 --batch-sizes 1 --steps 2 --rounds 1"
    bench(monkeypatch, line)
    *_, said, seen = capsys.readouterr().out.splitlines()
    path = results / "host_time_intel_core_i7_1185g7_3_00ghz.json"
    assert path.is_file() and said == f"Record: {path}"
    assert seen.startswith(f"To see it: run {record.DRAWN_IN};") and seen.endswith("shows it.")
    assert "Every machine, yours among them" in (paths.ROOT / record.DRAWN_IN).read_text(encoding="utf-8")
    bench(monkeypatch, f"{line} --json {results}/../other.json")
    assert capsys.readouterr().out.endswith("shows it. Put it into data/results first.\n")
