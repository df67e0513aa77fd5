"""What RELIABILITY.md promises of long runs is true of the records that it shows."""

from helpers import measured

from labkit import LADDER
from labkit.show.reliability import num_fell

FLOODS = [(record, run) for record in measured("flood") for run in record.samples]
FLAT = 1.05  # of a process, whose libraries keep what they once took


def test_no_schedule_fell_and_every_rung_had_its_share():
    records = measured("faults")
    assert not any(num_fell(record) for record in records)
    (on_a_cpu,) = (record for record in records if record.host.driver is None)
    assert any(record.host.driver for record in records)  # and one of a GPU
    assert [sample.rung for sample in on_a_cpu.samples] == list(LADDER)
    assert sum(sample.schedules for sample in on_a_cpu.samples) > 20_000


def test_no_damaged_file_fell():
    (record,) = measured("fuzz")
    assert num_fell(record) == 0 and record.settings["seconds"] >= 600


def test_in_a_flood_every_request_ends_as_asked_with_its_own_tokens():
    assert FLOODS
    for record, run in FLOODS:
        assert run.num_ended == 10_000 and run.ended.keys() == {"length", "cancelled", "left", "refused"}
        assert run.checked == run.equal > 0
        assert run.nearest_to_bound <= 1 and run.peak_blocks <= run.num_blocks
        assert run.most_passed_over <= (record.pack_window if run.policy == "pack" else 0)
        assert (run.memory_growth if record.host.driver is None else run.tensor_growth) <= FLAT
