"""Latency: TTFT, TPOT, ITL and throughput from the moments of completions."""

import numpy as np
import pytest

from labkit import Completion, FinishReason
from labkit.bench import latency_metrics
from labkit.engine import Timing
from labkit.model.tokenizer import WordTokenizer


def completed(request_id: int, arrived: float, admitted: float | None, *tokens: float) -> Completion:
    timing = Timing(arrived, admitted, tokens)
    token_ids = tuple(range(len(tokens)))
    return Completion(request_id, (1,), token_ids, FinishReason.LENGTH, timing, WordTokenizer(100, None))


def test_latency_metrics_are_those_of_the_moments():
    metrics = latency_metrics([completed(0, 10.0, 10.5, 11.0, 11.2, 11.6), completed(1, 10.0, 13.0, 14.0)])
    assert metrics.ttft == pytest.approx((1.0, 4.0))
    assert metrics.queue_wait == pytest.approx((0.5, 3.0))
    assert metrics.tpot == pytest.approx((0.3,))  # a request of one token has none
    assert metrics.itl == pytest.approx((0.2, 0.4))
    assert metrics.latency == pytest.approx((1.6, 4.0))
    assert (metrics.tokens, metrics.throughput) == (4, pytest.approx(1.0))
    assert metrics.table().loc["TTFT", "p50 (ms)"] == pytest.approx(2500)


def test_the_table_has_a_row_a_metric_and_a_column_a_percentile():
    """Of 21 requests, request i waits i ms; its prefill then takes 1 s and its second token 2 s."""
    completions = [completed(i, 0.0, i / 1e3, 1 + i / 1e3, 3 + i / 1e3) for i in range(21)]
    table = latency_metrics(completions).table()
    assert list(table.columns) == ["p50 (ms)", "p90 (ms)", "p95 (ms)", "p99 (ms)"]
    waits = np.array([10, 18, 19, 19.8])
    for row, before in {"TTFT": 1000, "  of it queue wait": 0, "Latency": 3000}.items():
        assert table.loc[row].tolist() == pytest.approx((before + waits).tolist())
    assert set(table.loc["TPOT"]) == set(table.loc["ITL"]) == {2000}
    assert len(table) == 5
    of_one_token = latency_metrics([completed(0, 0.0, 0.5, 1.0)]).table()
    assert list(of_one_token.index) == ["TTFT", "  of it queue wait", "Latency"]


def test_metrics_refuse_a_request_without_a_token():
    with pytest.raises(ValueError, match="request 7 made no token"):
        latency_metrics([completed(7, 0.0, None)])
