"""Launches on the host and kernels on the GPU, to scale."""

import pytest
from figures import titles

from labkit.show import draw_launches


def test_the_two_steps_are_drawn_to_scale():
    fig = draw_launches(kernels=100, eager_us=1000.0, graph_us=300.0, gpu_us=250.0, shown=20)
    eager, graph = fig.axes
    assert [len(lane.get_paths()) for lane in eager.collections] == [20, 20]
    assert [len(lane.get_paths()) for lane in graph.collections] == [1, 80]
    assert "GPU busy 25 %" in eager.get_title(loc="left") and "300 µs" in graph.get_title(loc="left")


def test_all_launches_are_shown_where_there_is_room():
    eager, graph = draw_launches(kernels=10, eager_us=50.0, graph_us=90.0, gpu_us=80.0).axes
    assert titles(eager.figure) == [
        "Launched one by one: 10 kernels in 50 µs, GPU busy 100 %",
        "One replay: the same 10 kernels in 90 µs",
    ]
    assert graph.get_xlim() == (0, 50)
    assert graph.get_xlabel() == "microseconds from the step's start (shown: the time of 10 launches)"
    assert [label.get_text() for label in eager.get_yticklabels()] == ["host", "GPU"]
    first, second = (path.get_extents() for path in eager.collections[0].get_paths()[:2])
    assert (first.x0, second.x0) == (0, 5) and first.width == pytest.approx(0.85 * 5)
