"""Lesson 11: a simulated GPU with two resources: waits overlap, bytes do not."""

from labkit.learn.lesson_11.simulated import Task, run
from labkit.show import Span


def test_memory_serves_who_asked_first_and_others_queue():
    tasks = [Task("main", "a", 2, 5, ()), Task("side", "b", 3, 4, ()), Task("side", "c", 1, 0, (1,))]
    assert run(tasks) == [
        Span("main", "a", "waits", 0, 2),
        Span("main", "a", "moves bytes", 2, 7),
        Span("side", "b", "waits", 0, 3),
        Span("side", "b", "queues for memory", 3, 7),
        Span("side", "b", "moves bytes", 7, 11),
        Span("side", "c", "waits", 11, 12),
    ]
