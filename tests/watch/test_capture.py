"""A step captured as a toy graph, and replayed."""

import torch

from labkit.watch import ToyGraph


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
