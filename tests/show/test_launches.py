"""Launches on the host and kernels on the GPU, to scale."""

from labkit.show import draw_launches


def test_the_two_steps_are_drawn_to_scale():
    fig = draw_launches(kernels=100, eager_us=1000.0, graph_us=250.0, shown=20)
    eager, graph = fig.axes
    assert [len(lane.get_paths()) for lane in eager.collections] == [20, 20]
    assert [len(lane.get_paths()) for lane in graph.collections] == [1, 80]
    assert "busy at most 25 %" in eager.get_title(loc="left") and "250 µs" in graph.get_title(loc="left")
