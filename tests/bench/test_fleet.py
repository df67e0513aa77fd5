"""A simulated fleet: how long requests take on a replica, where they go, and that none is forgotten."""

from dataclasses import replace

import pytest

from labkit.bench.fleet import MOST_ONGOING, Asked, Autoscaler, Fleet, Service, Simulation

FLAT = Service({1: 1.0, 64: 1.0}, 0.0)  # a step takes a second, and prompts take none
FAST = Service({1: 0.001, 64: 0.002}, 1e-6)


def test_a_request_waits_for_its_prompt_of_which_a_known_beginning_takes_nothing():
    going = Simulation(Fleet(Service({1: 1.0, 64: 1.0}, 0.01), 1), 1, 0)
    asked = [Asked(0.0, 7, "a", 10), Asked(6.0, 7, "a", 10), Asked(8.0, 8, "b", 10)]
    for each in asked:
        going.arrive(each)
    going.until(float("inf"))
    assert [each.ttft for each in asked] == pytest.approx([5.44, 0.32, 5.44])
    assert [each.has_hit for each in asked] == [False, True, False]


def test_requests_share_steps_which_take_longer_the_more_there_are():
    going = Simulation(Fleet(Service({1: 1.0, 64: 64.0}, 0.0), 1), 1, 0)
    for answer in (10, 20):
        going.arrive(Asked(0.0, 1, "", answer))
    going.until(float("inf"))
    assert going.live["0"].now == pytest.approx(10 * 2 + 10)
    assert [each.answer for each in going.done] == [10, 20]


def test_the_same_seed_gives_the_same_run_and_every_request_ends():
    fleet = Fleet(FAST, 4, ingresses=2)
    runs = [replace(fleet.steady(0.7, 200, seed), choice_seconds=1.0) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert [(run.requests, run.refused) for run in runs] == [(200, 0)] * 3


def test_affinity_finds_what_turns_compute_again():
    prefix, turns = (Fleet(FAST, 4, policy).steady(0.7, 400, 0) for policy in ("prefix", "round-robin"))
    assert prefix.hits > 0.9 > turns.hits


def test_the_requests_of_a_lost_replica_are_served_by_others():
    run = Fleet(FAST, 4).steady(0.7, 200, 0, lost=3)
    assert (run.requests, run.event) == (200, "3 lost")
    going = Simulation(Fleet(FLAT, 2), 2, 0)
    for _ in range(6):
        going.arrive(Asked(0.0, 1, "", 5))
    going.lose(1, 1.0)
    assert list(going.live) == ["1"] and going.live["1"].load == going.unfinished == 6


def test_more_than_all_replicas_take_is_refused():
    going = Simulation(Fleet(FLAT, 1), 1, 0)
    for _ in range(MOST_ONGOING + 3):
        going.arrive(Asked(0.0, 1, "", 5))
    assert len(going.refused) == 3 and going.unfinished == MOST_ONGOING


def test_replicas_are_wanted_when_load_has_asked_for_them_for_half_a_minute():
    scaler = Autoscaler(8)
    wanted = [scaler.wanted(float(second), 100, 1) for second in range(32)]
    assert wanted == [0] * 30 + [3, 3]
    assert Autoscaler(2).wanted(0.0, 100, 2) == 0


def test_in_groups_what_begins_alike_meets_until_the_group_has_too_much():
    going = Simulation(Fleet(FLAT, 4, ingresses=2, in_groups=True), 4, 0)
    assert [sorted(ingress.loads) for ingress in going.ingresses] == [["0", "2"], ["1", "3"]]
    asked = [Asked(0.0, 7, "a", 5) for _ in range(40)]
    for each in asked:
        going.arrive(each)
    first = asked[0].ingress
    assert {each.ingress for each in asked[:8]} == {first} != {each.ingress for each in asked}


@pytest.mark.slow
def test_a_fleet_that_grows_refuses_until_a_replica_joins():
    run = Fleet(FAST, 2).growing(1.5, 60.0, 0, cold_start=5.0)
    assert run.refused and run.last_refused >= 35.0 and run.event == "from 1, cold start 5 s"
