"""A workload's runs: what is counted, what is timed, and the limit that it is held against."""

from dataclasses import replace

import pytest
from helpers import small_model

from labkit import LADDER, CacheConfig, Completion, FinishReason, SchedulerConfig
from labkit.bench import Workload, latency_metrics
from labkit.engine import Timing
from labkit.errors import RequestError
from labkit.model.small import SMALL_LLAMA
from labkit.model.small import small_model as of_config
from labkit.model.tokenizer import WordTokenizer

OPTIONS = LADDER["00"].options


def workload(prompts=((1, 2, 3), (4, 5)), max_new_tokens=9, **changes) -> Workload:
    settings = {"device": "cpu", "cache": CacheConfig(4, prefix_cache=False), **changes}
    return Workload.alike(small_model(), prompts, max_new_tokens, **settings)


def test_a_run_knows_its_requests_and_its_paths_and_first_tokens_belong_to_the_prefill():
    """Trap 2: they are made there, so the decode's rate leaves them out."""
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    assert (run.tokens, run.decoded_tokens, run.decode_steps) == (18, 16, 8)
    assert run.decode_rate == pytest.approx(16 / run.decode_seconds)
    assert run.prefill_seconds > 0
    assert run.prefill_seconds + run.decode_seconds <= run.seconds
    assert sorted(zip(run.prompt_lens, run.new_tokens, strict=True)) == [(2, 9), (3, 9)]
    assert run.append_paths == {"boundary": 2 * 2 * 2, "in_place": 2 * 2 * 6}  # decoding alone, both layers
    assert len(run.latency.ttft) == 2 and len(run.latency.itl) == 16


def test_one_after_the_other_requests_need_the_pool_of_one_and_queue_inside_their_time_to_first_token():
    served = workload(scheduler=SchedulerConfig(max_batch_size=1))
    engine = served.make_engine(OPTIONS)
    assert engine.stats().blocks_per_layer == 3  # 3 + 9 tokens in blocks of 4
    run = served.run(engine)
    assert run.tokens == 18 and engine.stats().counters.preemptions == 0
    assert max(run.latency.queue_wait) > 8 * min(run.latency.itl)
    assert max(run.latency.ttft) > max(run.latency.queue_wait)


def test_a_run_finds_nothing_of_the_run_before():
    """Trap 2: a prefix cache that survives from the warm-up into the measured runs."""
    served = workload(prompts=(tuple(range(10)),), cache=CacheConfig(4))
    engine = served.make_engine(OPTIONS)
    for _ in range(3):
        served.run(engine)
    counters = engine.stats().counters
    assert (counters.prefill_tokens, counters.reused_tokens) == (30, 0)


@pytest.mark.parametrize(("prompt_len", "positions"), [(5, 1024), (1995, 2004)])
def test_a_model_of_many_positions_gets_those_that_gpt2_has_or_that_are_needed(prompt_len, positions):
    served = replace(workload(prompts=((1,) * prompt_len,)), model=of_config(4096, config=SMALL_LLAMA))
    assert served.make_engine(OPTIONS).max_positions == positions


def test_with_a_prefix_cache_the_pool_has_room_for_what_is_kept():
    """As large as an engine's is by itself: a full batch of the longest sequences."""
    engine = workload(cache=CacheConfig(4)).make_engine(OPTIONS)
    assert engine.stats().blocks_per_layer == 8 * 64 // 4


def test_more_tokens_than_positions_are_refused_before_anything_runs():
    with pytest.raises(RequestError, match="64 positions: shorten one by 39"):
        workload(max_new_tokens=100).make_engine(OPTIONS)


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


def test_the_table_has_a_row_a_metric_and_a_column_a_percentile():
    """Of 21 requests, request i waits i ms; its prefill then takes 1 s and its second token 2 s."""
    completions = [completed(i, 0.0, i / 1e3, 1 + i / 1e3, 3 + i / 1e3) for i in range(21)]
    table = latency_metrics(completions).table()
    assert list(table.columns) == ["p50 (ms)", "p90 (ms)", "p95 (ms)", "p99 (ms)"]
    assert table.loc["  of it queue wait"].tolist() == pytest.approx([10, 18, 19, 19.8])
    assert table["p50 (ms)"].to_dict() == {
        **{"TTFT": 1010, "  of it queue wait": 10, "TPOT": 2000},
        **{"ITL": 2000, "Latency": 3010},
    }
    of_one_token = latency_metrics([completed(0, 0.0, 0.5, 1.0)]).table()
    assert list(of_one_token.index) == ["TTFT", "  of it queue wait", "Latency"]


def test_metrics_refuse_a_request_without_a_token():
    with pytest.raises(ValueError, match="request 7 made no token"):
        latency_metrics([completed(7, 0.0, None)])
