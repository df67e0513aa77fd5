"""Lesson 11: a simulated GPU with two resources: waits overlap, bytes do not."""

from labkit.learn.lesson_11.simulated import Task, run
from labkit.show import Stretch


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
