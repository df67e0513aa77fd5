"""Sums over rungs of what became of schedules with faults."""

from made_records import record_of

from labkit.results.faults import FaultsRecord, RungFaults


def rung_faults(rung: str, fired: dict, ended: dict, fell: tuple = ()) -> RungFaults:
    return RungFaults(rung, 20, 10, fired, 7, 1, ended, 2, fell, 1.5)


RECORD = record_of(
    "faults",
    [
        rung_faults("00", {"A.a, in its place": 4, "A.b, in its place": 1}, {"length": 20, "error": 1}),
        rung_faults("10", {"A.a, in its place": 2}, {"length": 5, "cancelled": 6}, ("--only 3: lost",)),
    ],
    seed=5,
)


def test_a_record_sums_over_its_rungs():
    assert isinstance(RECORD, FaultsRecord)
    assert (RECORD.seed, RECORD.num_schedules, RECORD.num_fired) == (5, 20, 7)
    assert (RECORD.num_fell, RECORD.num_gave_up) == (1, 4)
    assert RECORD.ended == {"length": 25, "error": 1, "cancelled": 6}


def test_a_record_is_what_it_was_when_it_is_read_again():
    assert FaultsRecord.from_dict(RECORD.to_dict()) == RECORD
