"""Sums over what damaged files were for."""

from made_records import record_of

from labkit.results.fuzz import FuzzedTarget, FuzzRecord

LIMITS = {"limit_seconds": 20, "limit_memory": 2**31}
RECORD = record_of(
    "fuzz",
    [
        FuzzedTarget("checkpoint", 3, {"CheckpointError": 6}, (), 1.5, 0.5),
        FuzzedTarget("record", 1, {"RecordError": 2, "OptionError": 1}, ("--only 3: lost",), 0.5, 0.25),
    ],
    seed=5,
    memory=[100, 150, 110],
    **LIMITS,
)


def test_a_record_sums_over_its_targets():
    assert isinstance(RECORD, FuzzRecord)
    assert (RECORD.seed, RECORD.num_cases, RECORD.num_fell, RECORD.slowest) == (5, 14, 1, 0.5)
    assert [sample.num_refused for sample in RECORD.samples] == [6, 3]
    assert RECORD.memory_growth == 1.1


def test_memory_that_is_not_known_has_not_grown():
    assert record_of("fuzz", RECORD.samples, seed=5, memory=[], **LIMITS).memory_growth == 1.0


def test_a_record_is_what_it_was_when_it_is_read_again():
    assert FuzzRecord.from_dict(RECORD.to_dict()) == RECORD
