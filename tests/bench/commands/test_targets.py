"""Where results go: what cannot be written is refused before anything is measured."""

import os
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import pytest
import torch
from bench_commands import bench

from labkit import paths
from labkit.bench import __main__ as bench_main
from labkit.bench.commands import targets
from labkit.errors import OptionError

CPU = torch.device("cpu")


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
    assert parser.parse_args(["scheduler", "--json", target]).json == Path(target)
    assert contents(place) == before
    assert ((place / "file").stat().st_mtime_ns, (place / "file").read_text()) == (touched, "kept")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_written_is_refused(place):
    (place / "file").chmod(0o400)
    (place / "folder").chmod(0o500)
    for target in ("file", "folder/x"):
        with pytest.raises(ArgumentTypeError, match="Permission denied"):
            targets.target_file(str(place / target))


# --- the record of this machine --------------------------------------------------------------------


@pytest.fixture
def results(monkeypatch, tmp_path) -> Path:
    """data/results, empty; the machine's CPU is of a well-known kind."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(targets, "device_name", lambda device: "Intel(R) Core(TM) i7-1185G7 @ 3.00GHz")
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
        targets.own_target(Namespace(json=None), "ladder", CPU)


@pytest.mark.slow
def test_a_command_ends_by_saying_where_its_record_is_and_what_draws_it(results, monkeypatch, capsys):
    line = "host-time --device cpu --rungs 10 --batch-sizes 1 --steps 2 --rounds 1"
    bench(monkeypatch, line)
    *_, record, seen = capsys.readouterr().out.splitlines()
    path = results / "host_time_intel_core_i7_1185g7_3_00ghz.json"
    assert path.is_file() and record == f"Record: {path}"
    assert seen.startswith(f"To see it: run {targets.DRAWN_IN};") and seen.endswith("draws it.")
    assert "Every machine, yours among them" in (paths.ROOT / targets.DRAWN_IN).read_text(encoding="utf-8")
    bench(monkeypatch, f"{line} --json {results}/../other.json")
    assert capsys.readouterr().out.endswith("draws it. Put it into data/results first.\n")
