"""Lesson 08's trap: graphs that are captured when a batch size is first met."""

from collections import Counter

import torch
from helpers import small_model

from labkit import LADDER, SamplingParams
from labkit.engine.step.graphed import WARMUP_RUNS, batch_buckets
from labkit.learn.lesson_08 import lazy as room
from labkit.learn.lesson_08.lazy import LazyGraphs, Met, capture_costs, lazy_benchmark, lazy_captures
from labkit.show import draw_captures

BELOW = LADDER["07"].options


def test_lazy_graphs_are_captured_by_exact_size_and_dropped_when_the_table_grows():
    class Step:
        def __init__(self):
            self.calls = []
            self.attention = type("A", (), {"kv_manager": type("M", (), {"block_size": 4})})

        def __call__(self, *args):
            self.calls.append(args)
            return "tokens"

    step = Step()
    lazy = LazyGraphs(step)
    steps = [(2, 1, True), (2, 2, True), (3, 3, True), (2, 3, False)]
    steps += [(2, 4, True), (3, 5, True), (4, 5, True)]
    assert [lazy(*each) for each in steps] == ["tokens"] * 7
    assert step.calls == steps
    assert [met.reason for met in lazy.met] == ["size", "", "size", "size", "table", "table", "size"]
    assert [met.columns for met in lazy.met] == [1, 1, 1, 1, 2, 2, 2]
    table = capture_costs(lazy.met, 8)
    assert table["captures while serving"].tolist() == [6, 0]
    assert table["captures before serving"].tolist() == [0, 2 * len(batch_buckets(8))]
    assert table["runs of the step for captures, while serving"].tolist() == [6 * (WARMUP_RUNS + 1), 0]


class OnlyCounts(LazyGraphs):
    """As fast as it can be: the tokens are all 1."""

    def __call__(self, batch_size, max_context_len, is_greedy):
        self.device_step, step = lambda *_: torch.ones(batch_size, dtype=torch.int64), self.device_step
        self.device_step.attention = step.attention
        try:
            return super().__call__(batch_size, max_context_len, is_greedy)
        finally:
            self.device_step = step


def test_requests_that_come_and_go_make_captures_that_a_benchmark_does_not_see(monkeypatch):
    monkeypatch.setattr(room, "LazyGraphs", OnlyCounts)
    model, cpu = small_model(), torch.device("cpu")
    monkeypatch.setattr(
        room, "SamplingParams", lambda max_new_tokens, **kw: SamplingParams(max_new_tokens // 2, **kw)
    )
    met = lazy_captures(model, BELOW, cpu, num_steps=80)
    again = lazy_captures(model, BELOW, cpu, num_steps=80)
    assert met == again
    counts = Counter(step.reason for step in met)
    assert counts["size"] >= 3 and counts["table"] >= 1 and counts[""] > counts["size"]
    warm_up, measured = lazy_benchmark(model, BELOW, cpu)
    assert warm_up >= 2 and measured == 0


def test_captures_are_marked_where_they_happen():
    met = [Met(1, 1, "size"), Met(2, 1, "size"), Met(2, 2, "table"), Met(2, 2, "")]
    fig = draw_captures(*zip(*met, strict=True))
    (axes,) = fig.axes
    marked = [line for line in axes.lines if line.get_marker() == "o"]
    dots = [(list(line.get_xdata()), list(line.get_ydata())) for line in marked]
    assert dots == [([1, 2], [1, 2]), ([3], [2])]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [2.5]
    assert axes.get_title(loc="left") == "3 of 4 steps wait for a capture"
