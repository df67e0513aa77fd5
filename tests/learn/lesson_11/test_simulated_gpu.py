"""Lesson 11: a recorded layer, and a GPU with two resources: waits overlap, bytes do not."""

import pytest

from labkit import lab
from labkit.learn.lesson_11.halves import InHalves
from labkit.learn.lesson_11.simulated_gpu import (
    KernelTimes,
    Task,
    in_a_row,
    layers_of,
    num_kernels,
    run,
    total_us,
)
from labkit.show import Span

LAYER = [
    KernelTimes("norm_linear", 1.0, 0.0, 4.0),
    KernelTimes("attention", 0.0, 16.0, 5.0),
    KernelTimes("linear_residual", 2.0, 0.0, 4.0),
    KernelTimes("norm_linear", 3.0, 0.0, 4.0),
    KernelTimes("linear_residual", 4.0, 0.0, 4.0),
]


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


@pytest.mark.slow
def test_an_engines_launches_have_the_times_of_the_layer():
    class Whole(InHalves):
        def cut(self, slot_mapping):
            return [slot_mapping]

    build = lab.start("11").build
    whole, package = layers_of(build, LAYER, latency=Whole), layers_of(build, LAYER)
    assert total_us(whole) == total_us(in_a_row(LAYER)) and num_kernels(whole) == 60
    assert num_kernels(package) == 120 and {task.stream for task in package} == {"main", "side"}
    of_a_lane = [(t.name, t.waits_us, t.bytes_us) for t in package if t.stream == "side" and t.waits_us]
    halved = [(t.name, t.waits_us, t.weights_us + t.cache_us / 2) for t in LAYER]
    assert of_a_lane == 12 * halved
    assert 12 * (21 + 13 + 5) <= total_us(package) < total_us(whole)
