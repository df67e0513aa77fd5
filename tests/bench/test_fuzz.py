"""Damaged files: sound before, and each read or refused."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from labkit.bench import fuzz
from labkit.bench.fuzz import TARGETS, Case, Target, describe, judge, name_of
from labkit.bench.mutations import write
from labkit.errors import CheckpointError


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_damaged_is_sound_before(tmp_path, name):
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        write(TARGETS[name].sound(random.Random(seed)), folder)
        TARGETS[name].read(folder)


@pytest.mark.parametrize("number", range(len(fuzz.records())))
def test_every_record_is_sound_before_it_is_damaged(tmp_path, number):
    (tmp_path / fuzz.RECORD).write_bytes(fuzz.records()[number])
    fuzz.read_record(tmp_path)


def test_damaged_files_are_read_or_refused():
    """A short run of what the command does for minutes; what falls here is run again with --only."""
    judged = [judge(Case(3, number)) for number in range(250)]
    ended = Counter((one.target, one.error) for one in judged)
    assert {target for target, _ in ended} == set(TARGETS)
    assert {error for _, error in ended} == {None, "CheckpointError", "RecordError"}
    assert [one.target for one in judged[:20]] == [name_of(Case(3, number)) for number in range(20)]


def test_a_case_is_what_its_numbers_say():
    assert describe(Case(1, 2)) == describe(Case(1, 2)) != describe(Case(1, 3))


def reading(monkeypatch, error):
    def read(_: Path) -> None:
        raise error

    monkeypatch.setattr(fuzz, "TARGETS", {"mine": Target(1, lambda dice: {"a.json": b"[1]"}, read)})
    return lambda: judge(Case(0, 0))


def test_an_error_of_labkits_is_a_refusal(monkeypatch):
    assert reading(monkeypatch, CheckpointError("no"))().error == "CheckpointError"


@pytest.mark.parametrize("error", [TypeError("x"), MemoryError(), KeyError("a"), SystemExit(1)], ids=repr)
def test_another_error_is_none(monkeypatch, error):
    with pytest.raises(type(error)):
        reading(monkeypatch, error)()


@pytest.mark.parametrize("message", ["x" * 1001, "two\nlines"])
def test_a_message_that_is_no_line_is_no_refusal(monkeypatch, message):
    with pytest.raises(AssertionError, match="a message of"):
        reading(monkeypatch, CheckpointError(message))()


def test_a_message_that_no_terminal_shows_is_no_refusal(monkeypatch):
    with pytest.raises(UnicodeEncodeError):
        reading(monkeypatch, CheckpointError("\ud800"))()


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number in range(5):
        judge(Case(4, number))
    assert list(tmp_path.iterdir()) == []
