"""A step captured as a toy graph, and replayed."""

import torch
from helpers import make_engine

from labkit import LADDER
from labkit.watch import LaunchRecorder, ToyGraph, capture, device_step_of, recorded_step


def test_a_replay_follows_what_lies_at_the_addresses():
    x, y = torch.arange(4.0), torch.zeros(2)
    with ToyGraph() as graph:
        doubled = x.view(2, 2).t() * 2
        y += doubled.sum(0)
        best, which = doubled.max(dim=1)
    x += 10
    with torch.no_grad():
        graph.replay()
    assert doubled.tolist() == [[20, 24], [22, 26]]
    assert y.tolist() == [2 * 1 + 42, 2 * 5 + 50]  # what the capture added, and the replay
    assert best.tolist() == [24, 26] and which.tolist() == [1, 1]


def test_numbers_and_decisions_of_the_host_are_those_of_the_capture():
    x, counter = torch.ones(2), [1]
    with ToyGraph() as graph:
        y = x + counter[0] if x.sum() < 5 else x - counter[0]
    counter[0] = 7
    x.fill_(100)
    graph.replay()
    assert y.tolist() == [101, 101]


def test_a_kernel_is_one_launch_also_with_another_inside_and_does_its_work_in_a_replay():
    def twin(x, y, factor):
        for _ in range(3):
            x = inside(x) * 1
        y.copy_(x * factor)
        return x + y

    x, y = torch.ones(2), torch.zeros(2)
    with ToyGraph() as graph:
        inside = graph.as_kernel("inside", torch.clone)
        out = graph.as_kernel("a kernel", twin)(x, y, 2)
    assert [launch.name for launch in graph.launches] == ["twin"]
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10, 10] and out.tolist() == [15, 15]


def test_a_launch_runs_again_on_the_same_tensors_and_leaves_the_first_result_alone():
    x = torch.ones(2)
    with LaunchRecorder() as recorder:
        doubled = x * 2
        x += 1
    multiply, add = recorder.launches
    (made,) = multiply.run()
    assert made.tolist() == [4, 4] and doubled.tolist() == [2, 2]
    assert add.run()[0].data_ptr() == x.data_ptr() and x.tolist() == [3, 3]


def test_any_recorder_can_be_told_of_a_step():
    step = device_step_of(make_engine(options=LADDER["07"].options, max_batch_size=2))
    recorder = LaunchRecorder()
    token_ids = recorded_step(step, 2, True, recorder)
    graph, _ = capture(step, 2, True)
    assert token_ids.shape == (2,)
    assert [launch.name for launch in recorder.launches] == [launch.name for launch in graph.launches]
