"""Lesson 11: simulated streams, and a simulated GPU with two resources: waits overlap, bytes do not."""

import torch

from labkit.learn.lesson_11.simulated import SimulatedStreams, Task, run
from labkit.show import Stretch

A, B = torch.zeros(2), torch.ones(2)


def test_a_stream_waits_for_what_was_launched_before_and_for_nothing_later():
    simulated = SimulatedStreams()
    main, side = simulated.main, simulated.side
    simulated.launch("one", (), (A,))
    side.wait_stream(main)
    simulated.launch("two", (), (B,))
    with simulated.launching_in(side):
        assert simulated.main is side
        simulated.launch("three", (A,), ())
    assert simulated.main is main
    one, two, three = simulated.launches
    assert three.is_behind(one) and not three.is_behind(two) and two.is_behind(one)
    assert [(launch.stream, launch.number) for launch in simulated.launches] == [
        ("main", 1),
        ("main", 2),
        ("side", 1),
    ]


def test_memory_serves_who_asked_first_and_others_queue():
    tasks = [Task("main", "a", 2, 5, ()), Task("side", "b", 3, 4, ()), Task("side", "c", 1, 0, (1,))]
    assert run(tasks) == [
        Stretch("main", "waits", 0, 2, "a"),
        Stretch("main", "moves bytes", 2, 7, "a"),
        Stretch("side", "waits", 0, 3, "b"),
        Stretch("side", "queues for memory", 3, 7, "b"),
        Stretch("side", "moves bytes", 7, 11, "b"),
        Stretch("side", "waits", 11, 12, "c"),
    ]
