"""RELIABILITY.md: the tests and records that it names are there, and its long runs kept what it promises."""

import re

from helpers import EXACT, measured

from labkit.paths import ROOT
from labkit.show.reliability import FAULTS_RECORDS, FLOOD_RECORDS, HTTP_FLOOD_RECORD, growth, num_fell

TEXT = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
PROMISES = re.findall(r"^\| (\d+) \|(.*)", TEXT.split("## Faults")[0], re.MULTILINE)
FLOODS = [(record, run) for record in measured("flood") for run in record.samples]
RECORDS = (*FAULTS_RECORDS, *FLOOD_RECORDS, HTTP_FLOOD_RECORD)
FLAT = 1.05  # of a process, whose libraries keep what they once took


def test_every_test_that_is_named_is_there():
    assert TESTS
    for path, name in TESTS:
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)


def test_every_promise_names_its_tests_and_every_record_is_linked():
    assert len(PROMISES) > 10 and [int(number) for number, _ in PROMISES] == [*range(1, len(PROMISES) + 1)]
    assert all("`tests/" in promise for _, promise in PROMISES)
    assert all(f"(data/results/{record}.json)" in TEXT for record in RECORDS)


def test_no_schedule_fell_and_every_rung_had_its_share():
    records = measured("faults")
    assert not any(num_fell(record) for record in records)
    (on_a_cpu,) = (record for record in records if record.host.driver is None)
    assert any(record.host.driver for record in records)  # and one of a GPU
    assert [sample["rung"] for sample in on_a_cpu.samples] == EXACT
    assert sum(sample["schedules"] for sample in on_a_cpu.samples) > 20_000


def test_in_a_flood_every_request_ends_as_asked_with_its_own_tokens():
    assert FLOODS
    for record, run in FLOODS:
        assert sum(run["ended"].values()) == record.settings["num_requests"] >= 4_000
        assert run["ended"].keys() == {"length", "cancelled", "left", "refused"}
        assert run["checked"] == run["equal"] > 0
        assert run["nearest_to_bound"] <= 1 and run["peak_blocks"] <= run["num_blocks"]
        assert run["most_passed_over"] <= (record.pack_window if run["policy"] == "pack" else 0)
        assert growth(run["memory"] if record.host.driver is None else run["tensors"]) <= FLAT


def test_in_a_flood_over_http_nothing_was_lost():
    (record,) = measured("http_flood")
    (run,) = record.samples
    assert sum(run["ended"].values()) == 11_000 and run["most_open"] == 1000
    assert run["blocks_lost"] == 0 and run["retries"] > 0
    assert growth(run["memory"]) <= FLAT


def test_memory_of_a_flood_grows_from_its_thousandth_request_on():
    grown = {(): 1.0, (5,) * 9: 1.0, (1,) * 9 + (8, 20, 10): 1.25, (0,) * 12: 1.0}
    assert {memory: growth(memory) for memory in grown} == grown
