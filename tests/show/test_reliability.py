"""RELIABILITY.md: its figures are those of the records, and what it names is there."""

import re

import pytest

from labkit.paths import ROOT
from labkit.show import reliability

TEXT = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
LINKS = sorted(set(re.findall(r"\]\(([^)#]+)\)", TEXT)))
PROMISES = re.findall(r"^\| \d+ \|.*", TEXT.split("## Faults")[0], re.MULTILINE)


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
