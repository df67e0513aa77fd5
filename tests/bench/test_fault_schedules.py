"""Schedules with faults: of every kind, and the same again from the same dice."""

import random

from labkit import LADDER
from labkit.bench.fault_schedules import ERRORS, MOVES, draw_schedule, which_request
from labkit.bench.faults import points_called


def test_schedules_are_of_every_kind():
    """Many prompts, all moves, both policies; a dice of the same seed draws the same."""
    points = points_called(LADDER["10"].options)
    drawn = [draw_schedule(random.Random(seed), points) for seed in range(200)]
    assert drawn[7] == draw_schedule(random.Random(7), points)
    assert {move for schedule in drawn for move, _ in schedule.moves} == set(MOVES)
    assert {schedule.scheduler.admission_policy for schedule in drawn} == {"fifo", "pack"}
    every = [fault for schedule in drawn for fault in schedule.faults]
    assert {fault.point for fault in every} == set(points)
    assert {fault.harm for fault in every} == {
        "in its place",
        "behind its work",
        "from there on",
        "no numbers",
    }
    assert {fault.error for fault in every} == set(ERRORS)


def test_without_points_nothing_fails_and_every_request_is_drawn():
    assert draw_schedule(random.Random(1), ()).faults == ()
    assert len({which_request(number) for number in range(100)}) == 24


def test_an_engine_without_a_prefix_cache_has_no_fault_in_it():
    for seed in range(50):
        schedule = draw_schedule(
            random.Random(seed), ("PrefixCache.lookup", "BlockPrefixCache.lookup", "Other.work")
        )
        assert schedule.cache.prefix_cache or {fault.point for fault in schedule.faults} == {"Other.work"}
