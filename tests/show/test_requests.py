"""Requests on one clock: wait, prefill, tokens."""

import pytest

from labkit import Completion, FinishReason, InferenceEngine, SamplingParams, show
from labkit.engine import Timing


def test_request_rows_have_a_tick_for_each_token(tiny):
    engine = InferenceEngine(tiny, device="cpu")
    done = engine.generate([[5], [6, 7]], SamplingParams(max_new_tokens=5, stop_on_eos=False))
    axes = show.draw_requests(done).axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [5, 5]
    assert "milliseconds" in axes.get_xlabel()


def test_request_rows_show_the_wait_the_prefill_and_the_decode(tiny):
    """In milliseconds from the first arrival, which need not be the first row's."""
    moments = [Timing(10.05, 10.1, (10.3, 10.4)), Timing(10.0, 10.0, (10.2, 10.3, 10.5))]
    done = [Completion(i, (1,), (2,), FinishReason.LENGTH, t, tiny.tokenizer) for i, t in enumerate(moments)]
    axes = show.draw_requests(done).axes[0]
    bars = [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in axes.patches]
    assert bars == [(50, 50), (100, 200), (300, 100), (0, 0), (0, 200), (200, 300)]
    assert [line.get_xdata() for line in axes.lines] == [
        pytest.approx([300, 400]),
        pytest.approx([200, 300, 500]),
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["request 0", "request 1"]
