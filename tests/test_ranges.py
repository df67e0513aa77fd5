"""Named ranges: in the torch profiler always, in Nsight Systems when asked for."""

import runpy

import pytest
import torch
from helpers import GREEDY, make_engine
from torch.profiler import ProfilerActivity, profile

from labkit import ranges
from labkit.errors import OptionError
from labkit.watch import OperatorCounter

DECODE_STEP = [
    "labkit.decode_step_sessions.build_block_tables",
    "labkit.decode_step_sessions.h2d_block_tables",
    "labkit.model.forward",
    "labkit.kv.append_token",
]
PREFILL = ["labkit.prefill_sessions"]


def test_a_trace_of_a_step_shows_its_phases_in_order():
    engine = make_engine()
    engine.add_request((1, 2, 3), GREEDY)
    for expected in (PREFILL, DECODE_STEP):
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            engine.step()
        events = sorted(trace.events(), key=lambda event: event.time_range.start)
        assert [event.name for event in events if event.name.startswith("labkit.")] == expected


def test_where_nobody_profiles_nothing_is_named(monkeypatch, nvtx_calls):
    """Naming takes longer than many a step's work on the host."""
    monkeypatch.setattr(ranges, "nvtx_enabled", False)
    monkeypatch.setattr(ranges, "record_function", lambda name: pytest.fail(f"{name} was named"))
    for _ in range(2):
        with ranges.named_range("outer"), ranges.named_range("inner"):
            pass
    assert nvtx_calls == []


def test_who_counts_operators_counts_two_for_a_range():
    """As the records do: their counts are of a time when every range was named."""
    with OperatorCounter() as counter, ranges.named_range("outer"):
        pass
    assert counter.operators == 2


@pytest.fixture
def nvtx_calls(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    return calls


def test_nvtx_ranges_are_pushed_and_popped_when_enabled(monkeypatch, nvtx_calls):
    monkeypatch.setattr(ranges, "nvtx_enabled", True)
    with pytest.raises(KeyError), ranges.named_range("outer"):
        with ranges.named_range("inner"):
            pass
        raise KeyError
    assert nvtx_calls == ["outer", "inner", "pop", "pop"]


@pytest.mark.parametrize(
    ("value", "has_gpu", "enabled"),
    [("1", True, True), ("1", False, False), (None, True, False)],
)
def test_nvtx_needs_the_variable_and_a_gpu(monkeypatch, value, has_gpu, enabled):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    if value is None:
        monkeypatch.delenv("LABKIT_NVTX", raising=False)
    else:
        monkeypatch.setenv("LABKIT_NVTX", value)
    fresh = runpy.run_path(ranges.__file__)
    assert fresh["nvtx_enabled"] is enabled


def test_nvtx_can_be_switched_on_where_there_is_a_gpu(monkeypatch, nvtx_calls):
    monkeypatch.setattr(ranges, "nvtx_enabled", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="need a CUDA GPU"):
        ranges.enable_nvtx()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ranges.enable_nvtx()
    with ranges.named_range("outer"):
        pass
    assert nvtx_calls == ["outer", "pop"]
