"""What a step launches, kernel by kernel; and captured as a toy graph, and replayed."""

import pytest
import torch
from helpers import make_engine

from labkit import LADDER, watch
from labkit.learn.lesson_09.steps import STANDS_FOR
from labkit.watch import ToyGraph
from labkit.watch.launches import Launch, layer_of

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]
SEPARATE, FUSED = LADDER["08"].options, LADDER["09"].options


@pytest.fixture(scope="module")
def launches() -> dict[str, list[Launch]]:
    logs = {rung: watch.log_step(make_engine(options=LADDER[rung].options), PROMPTS) for rung in ("08", "09")}
    return {rung: log.launches for rung, log in logs.items()}


def test_a_layer_is_ten_kernels_or_five_and_five_are_around_them(launches):
    names = [launch.name for launch in layer_of(launches["08"])]
    assert names == [name for _, stands_for in STANDS_FOR for name in stands_for] and len(names) == 10
    layer = [name for name, _ in STANDS_FOR]
    assert [launch.name for launch in layer_of(launches["09"])] == layer and len(layer) == 5
    names = [launch.name for launch in launches["09"]]
    assert names == ["embed", *layer, *layer, "layer_norm", "linear", "greedy_advance"]
    assert watch.count_kernels(launches["09"]) == 2 * 5 + 5  # two of them choose the token


def test_a_row_of_the_log_counts_numbers_a_fused_one_the_folded_weights(launches):
    B, E = 2, 16
    assert layer_of(launches["08"])[0] == Launch("layer_norm", 2 * E, B * E, B * E)
    assert layer_of(launches["08"])[2] == Launch("attention", 0, 3 * B * E, B * E)
    qkv, _, back, *_ = layer_of(launches["09"])
    assert (qkv.weights, qkv.writes) == (3 * E * E + 2 * 3 * E, 3 * B * E)  # column sums and biases
    assert (back.weights, back.writes) == (E * E + E, B * E + 2 * B)  # and two numbers per row


def test_an_engine_without_a_step_on_the_device_is_refused():
    engine = make_engine(options=LADDER["05"].options)
    with pytest.raises(ValueError, match="no step on the device; take rung 06"):
        watch.device_step_of(engine)


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
