"""Measuring: latency from completions, the hardware's limit, profiles and records."""

import json

import numpy as np
import pytest
import torch

from labkit import CacheConfig, Completion, FinishReason, InferenceEngine, SamplingParams
from labkit.bench import (
    StepProfile,
    copy_bandwidth,
    decode_limit,
    dense_tokens,
    forward_flops,
    latency_metrics,
    limit,
    parity_table,
    profile_decode_step,
    transformers_tokens,
)
from labkit.bench.attention_time import time_attention
from labkit.bench.profile import Span, short_name
from labkit.engine import Timing
from labkit.model.checkpoint import random_gpt2
from labkit.model.config import GPT2Config
from labkit.model.tokenizer import WordTokenizer
from labkit.watch import steady_decode


def completed(request_id: int, arrived: float, admitted: float | None, *tokens: float) -> Completion:
    timing = Timing(arrived, admitted, tokens)
    token_ids = tuple(range(len(tokens)))
    return Completion(request_id, (1,), token_ids, FinishReason.LENGTH, timing, WordTokenizer(100, None))


@pytest.fixture(scope="module")
def engine(tiny):
    return InferenceEngine(tiny, device="cpu", cache=CacheConfig(prefix_cache=False))


def test_latency_metrics_are_those_of_the_moments():
    metrics = latency_metrics([completed(0, 10.0, 10.5, 11.0, 11.2, 11.6), completed(1, 10.0, 13.0, 14.0)])
    assert metrics.ttft == pytest.approx((1.0, 4.0))
    assert metrics.queue_wait == pytest.approx((0.5, 3.0))
    assert metrics.tpot == pytest.approx((0.3,))  # a request of one token has none
    assert metrics.itl == pytest.approx((0.2, 0.4))
    assert metrics.latency == pytest.approx((1.6, 4.0))
    assert (metrics.tokens, metrics.throughput) == (4, pytest.approx(1.0))
    assert metrics.table().loc["TTFT", "p50 (ms)"] == pytest.approx(2500)


def test_gaps_of_all_requests_are_pooled():
    metrics = latency_metrics([completed(0, 0, 0, 1, 2), completed(1, 0, 0, 1, 4)])
    assert metrics.itl == metrics.tpot == (1, 3)
    assert metrics.table().loc["ITL", "p50 (ms)"] == 2000


def test_throughput_is_that_from_the_first_arrival_to_the_last_token():
    metrics = latency_metrics([completed(0, 10.0, 10.0, 11.0), completed(1, 12.0, 12.0, 13.0, 15.0)])
    assert (metrics.span, metrics.throughput) == (5.0, 3 / 5.0)


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


def test_metrics_refuse_a_request_without_a_token():
    with pytest.raises(ValueError, match="request 7 made no token"):
        latency_metrics([completed(7, 0.0, None)])


def test_ttft_counts_the_wait_for_a_place(tiny):
    from labkit import SchedulerConfig

    engine = InferenceEngine(tiny, device="cpu", scheduler=SchedulerConfig(max_batch_size=1))
    done = engine.generate([[5, 6], [7, 8]], SamplingParams(max_new_tokens=4, stop_on_eos=False))
    metrics = latency_metrics(done)
    assert done[1].timing.admitted >= done[0].timing.tokens[-1]
    assert metrics.ttft[1] > metrics.queue_wait[1] > metrics.tpot[0] * 3


def test_limit_counts_weights_once_and_every_live_token():
    config = GPT2Config(vocab_size=11, n_positions=7, n_embd=4, n_layer=2, n_head=2)
    gpt2 = random_gpt2(config, seed=0)
    a_layer = 4 * 12 + 12 + 4 * 4 + 4 + 4 * 16 + 16 + 16 * 4 + 4 + 4 * 4
    limit = decode_limit(gpt2, [5, 3], bandwidth=100.0)
    assert limit.weight_bytes == 4 * (11 * 4 + 2 * a_layer + 8)
    assert limit.kv_bytes == 4 * 2 * 2 * 4 * (5 + 3 + 2)
    assert limit.seconds == pytest.approx((limit.weight_bytes + limit.kv_bytes) / 100)
    assert limit.tokens_per_second == pytest.approx(2 / limit.seconds)


@pytest.mark.parametrize("num_bytes", [1000, 4096])
def test_bandwidth_counts_the_bytes_read_and_the_bytes_written(monkeypatch, num_bytes):
    monkeypatch.setattr(limit, "fastest_seconds", lambda run, device, repeats: run() is None or 0.5)
    assert copy_bandwidth("cpu", num_bytes) == 2 * num_bytes / 0.5


@pytest.mark.parametrize(("batch_size", "context_len"), [(1, 64), (3, 20)])
def test_the_bytes_of_attention_are_those_of_the_keys_and_of_the_values(batch_size, context_len):
    (made,) = time_attention(batch_size, context_len, torch.device("cpu"), repeats=2, rounds=1)
    assert made.num_bytes == (1 + 1) * batch_size * context_len * 12 * 64 * 4  # GPT-2's heads, in float32
    assert made.rate == made.num_bytes / (1e-6 * made.us) and len(made.seconds) == 2


def test_limit_reads_an_untied_head_but_not_the_table():
    tied = GPT2Config(vocab_size=11, n_positions=7, n_embd=4, n_layer=2, n_head=2)
    untied = GPT2Config(11, 7, 4, 2, 2, tie_word_embeddings=False)
    weights = [decode_limit(random_gpt2(c, 0), [1], 1.0).weight_bytes for c in (tied, untied)]
    assert weights[0] == weights[1]


def test_limit_of_gpt2_is_the_published_one():
    """LINEAGE: 64 x 512 tokens, B = 64, about 226,000 tokens/s on an H100 that copies 3.0 TB/s."""
    with torch.device("meta"):
        gpt2 = random_gpt2_on_meta()
    limit = decode_limit(gpt2, [256] * 64, bandwidth=3.0e12)
    assert limit.tokens_per_second == pytest.approx(226_000, rel=0.02)


def random_gpt2_on_meta():
    from labkit.model import GPT2
    from labkit.model.checkpoint import RANDOM_CONFIGS

    return GPT2(RANDOM_CONFIGS["gpt2"]).half()


def test_flops_agree_with_torchs_own_counter(tiny):
    from torch.utils.flop_counter import FlopCounterMode

    config, num_tokens = tiny.config, 6
    with FlopCounterMode(display=False) as counter:
        tiny.gpt2.prefill(torch.arange(num_tokens)[None], torch.tensor([num_tokens]))
    # torch counts the square of attention scores, of which the causal half is needed
    unneeded = 4 * config.n_layer * config.n_embd * (num_tokens * (num_tokens - 1) / 2)
    counted = counter.get_total_flops() - unneeded
    assert forward_flops(config, num_tokens, num_tokens) == pytest.approx(counted, rel=0.01)


@pytest.mark.slow
def test_profile_has_the_seeds_ranges_in_order_and_adds_up(engine):
    with steady_decode(engine, [[1, 2], [3, 4, 5]]):
        profile = profile_decode_step(engine)
    assert [span.name for span in profile.ranges] == [
        "labkit.decode_step_sessions.build_block_tables",
        "labkit.decode_step_sessions.h2d_block_tables",
        "labkit.model.forward",
        "labkit.kv.append_token",
    ]
    table = profile.table()
    assert table["% of step"].sum() == pytest.approx(100, abs=0.5)
    assert table["operators"].sum() == len(profile.operators)
    append = engine.model.config.n_layer * 2
    assert table.loc["labkit.kv.append_token", "operators"] >= 2 * append  # a key and a value each
    assert profile.batch_size == 2 and profile.kernels == ()


def test_profile_survives_its_record():
    spans = (Span("labkit.model.forward", 1.0, 2.0),)
    profile = StepProfile(3, 9.0, spans, spans, (Span("kernel", 1.5, 0.9),))
    assert StepProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert profile.gpu_busy == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::(anonymous namespace)::norm_kernel<c10::Half>(int, float)", "at::anonymous::norm_kernel"),
        ("_paged_attn_decode_kernel", "_paged_attn_decode_kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
    ],
)  # fmt: skip
def test_kernel_names_are_short(name, short):
    assert short_name(name) == short


def test_dense_reference_and_transformers_agree(tiny):
    prompts = [[40, 41, 42], [7]]
    dense = dense_tokens(tiny, prompts, 8)
    assert dense == transformers_tokens(tiny, prompts, 8)
    assert [len(tokens) for tokens in dense] == [8, 8]


@pytest.mark.slow
def test_parity_is_said_prompt_by_prompt(tiny):
    from labkit import LADDER

    engines = {name: InferenceEngine(tiny, LADDER[name].options, device="cpu") for name in ("00", "05")}
    table = parity_table(engines, ["To be", "O"], 6)
    assert list(table.columns) == ["00 = dense", "00 = transformers", "05 = dense", "05 = transformers"]
    assert list(table.index) == ["'To be'", "'O'"] and table.all().all()


def test_parity_is_denied_where_a_token_differs(tiny, monkeypatch):
    monkeypatch.setattr("labkit.bench.parity.dense_tokens", lambda *args: [(1, 2, 3), (4, 5, 6)])
    table = parity_table({"engine": InferenceEngine(tiny, device="cpu")}, ["To be", "O"], 3)
    assert not table["engine = dense"].any() and table["engine = transformers"].all()
