"""Named ranges: in the torch profiler, and where nobody looks none."""

import pytest
from helpers import GREEDY, make_engine
from torch.profiler import ProfilerActivity, profile

from labkit import ranges
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


def test_where_nobody_profiles_nothing_is_named(monkeypatch):
    """Naming takes longer than many a step's work on the host."""
    monkeypatch.setattr(ranges, "record_function", lambda name: pytest.fail(f"{name} was named"))
    for _ in range(2):
        with ranges.named_range("outer"), ranges.named_range("inner"):
            pass


def test_who_counts_operators_counts_two_for_a_range():
    """As the records do: their counts are of a time when every range was named."""
    with OperatorCounter() as counter, ranges.named_range("outer"):
        pass
    assert counter.operators == 2
