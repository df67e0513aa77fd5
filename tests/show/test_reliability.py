"""RELIABILITY.md: its figures are those of the records, and what it names is there."""

import re

import pytest

from labkit.paths import ROOT
from labkit.results import load
from labkit.results.faults import FaultsRecord
from labkit.results.flood import FloodRecord
from labkit.results.fuzz import FuzzRecord
from labkit.show import reliability

TEXT = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
LINKS = sorted(set(re.findall(r"\]\(([^)#]+)\)", TEXT)))
PROMISES = re.findall(r"^\| \d+ \|.*", TEXT.split("## Faults")[0], re.MULTILINE)


def test_no_recorded_schedule_fell():
    records = [load(name, FaultsRecord) for name in reliability.FAULTS_RECORDS]
    assert {record.host.driver is None for record in records} == {True, False}  # a CPU's and a GPU's
    for record in records:
        assert record.num_fell == 0
        assert reliability.faults_of(record).count("**0 schedules fell.**") == 1
        assert len(reliability.faults_of(record).splitlines()) == 4 + len(record.samples)


def test_floods_were_recorded_under_both_policies():
    records = [load(name, FloodRecord) for name in reliability.FLOOD_RECORDS]
    assert {sample.policy for record in records for sample in record.samples} == {"fifo", "pack"}


def test_no_recorded_damaged_file_fell():
    record = load(reliability.FUZZ_RECORD, FuzzRecord)
    assert record.num_fell == 0 and "**0 cases fell.**" in TEXT
    assert len(reliability.fuzz_text().splitlines()) == 4 + len(record.samples)
    assert record.memory_growth < 1.1


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_every_test_that_is_named_is_there(path, name):
    source = (ROOT / path).read_text(encoding="utf-8")
    assert not name or f"def {name}(" in source


@pytest.mark.parametrize("link", LINKS)
def test_every_link_leads_somewhere(link):
    assert (ROOT / link).exists()


def test_every_promise_names_its_tests():
    assert len(PROMISES) > 10 and [p.split("|")[1].strip() for p in PROMISES] == [
        str(i + 1) for i in range(len(PROMISES))
    ]
    assert all("`tests/" in promise for promise in PROMISES)


@pytest.mark.parametrize(
    "record", [*reliability.FAULTS_RECORDS, *reliability.FLOOD_RECORDS, reliability.FUZZ_RECORD]
)
def test_the_records_are_linked(record):
    assert f"data/results/{record}.json" in LINKS
