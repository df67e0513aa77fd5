"""Recorded counts and times of a step."""

from made_records import host_time_of, host_time_record

from labkit import results
from labkit.learn.lesson_06 import cost


def test_the_copies_of_a_recorded_profile():
    profile = results.load("profile_rung02_h100").largest.profile
    costs = cost.copy_costs(profile)
    assert costs["small copies"] == 3 + 3 * 12
    assert costs["us of the GPU, each"] < costs["us from one to the next"]


def test_recorded_counts_are_those_of_the_step_asked_for():
    record = results.load("cost_cards_h100")
    table = cost.recorded_counts(record, ["04", "05"], 64, {20, 23})
    assert list(table) == ["rung 04", "rung 05"]
    assert table.loc["of the copies, synchronizing"].tolist() == [27, 27]
    assert cost.recorded_counts(record, ["05"], 8, {20}).loc["index tensors constructed"].tolist() == [15]


def test_the_parts_of_a_step_are_named_by_the_rung():
    times = [host_time_of(b, (9e-6,) * 3, (2e-6,) * 3, (3e-6,) * 3) for b in (1, 8)]
    record = host_time_record([(rung, time) for rung in ("05", "06") for time in times])
    table = cost.host_parts(record, ("05", "06"), (8,))
    assert list(table) == ["B = 8"]
    assert table["B = 8"].to_dict() == {
        ("rung 05", "block tables"): 2,
        ("rung 05", "append"): 3,
        ("rung 05", "the rest"): 4,
        ("rung 05", "a step"): 9,
        ("rung 06", "send state"): 2,
        ("rung 06", "make room"): 3,
        ("rung 06", "the rest"): 4,
        ("rung 06", "a step"): 9,
    }
