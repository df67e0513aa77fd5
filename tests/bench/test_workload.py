"""A workload's runs: what is counted, what is timed, and the limit that it is held against."""

from dataclasses import replace

import pytest
from helpers import small_model

from labkit import LADDER, CacheConfig, SchedulerConfig
from labkit.bench import Workload, decode_limit, workload_limit
from labkit.errors import RequestError

OPTIONS = LADDER["00"].options


def workload(prompts=((1, 2, 3), (4, 5)), max_new_tokens=9, **changes) -> Workload:
    settings = {"device": "cpu", "cache": CacheConfig(4, prefix_cache=False), **changes}
    return Workload.alike(small_model(), prompts, max_new_tokens, **settings)


def test_a_workload_knows_its_longest_text_and_whether_someone_comes_later():
    served = workload()
    assert served.longest == 3 + 9 and not served.has_arrivals
    first, second = served.requests
    assert replace(served, requests=(first, replace(second, arrives_at=0.1))).has_arrivals


def test_first_tokens_belong_to_the_prefill():
    """Trap 2: they are made there, so the decode's rate leaves them out."""
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    assert (run.tokens, run.decoded_tokens, run.decode_steps) == (18, 16, 8)
    assert run.decode_rate == pytest.approx(16 / run.decode_seconds)
    assert run.prefill_seconds > 0
    assert run.prefill_seconds + run.decode_seconds <= run.seconds


def test_a_run_knows_its_requests_and_its_paths():
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    assert sorted(zip(run.prompt_lens, run.new_tokens, strict=True)) == [(2, 9), (3, 9)]
    assert run.append_paths == {"boundary": 2 * 2 * 2, "in_place": 2 * 2 * 6}  # decoding alone, both layers
    assert len(run.latency.ttft) == 2 and len(run.latency.itl) == 16


def test_queueing_is_inside_the_time_to_first_token():
    served = workload(scheduler=SchedulerConfig(max_batch_size=1))
    run = served.run(served.make_engine(OPTIONS))
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


def test_the_pool_is_as_large_as_the_workload_needs():
    served = workload(scheduler=SchedulerConfig(max_batch_size=1))
    engine = served.make_engine(OPTIONS)
    assert engine.stats().blocks_per_layer == 3  # 3 + 9 tokens in blocks of 4, one request at a time
    assert served.run(engine).tokens == 18 and engine.stats().counters.preemptions == 0


def test_with_a_prefix_cache_the_pool_has_room_for_what_is_kept():
    """As large as an engine's is by itself: a full batch of the longest sequences."""
    engine = workload(cache=CacheConfig(4)).make_engine(OPTIONS)
    assert engine.stats().blocks_per_layer == 8 * 64 // 4


def test_more_tokens_than_positions_are_refused_before_anything_runs():
    with pytest.raises(RequestError, match="64 positions: shorten one by 39"):
        workload(max_new_tokens=100).make_engine(OPTIONS)


def test_stopping_early_is_off_unless_asked_for():
    model = small_model()
    everything = Workload.alike(model, ((1, 2, 3),), 20, device="cpu")
    params = everything.requests[0].params
    assert not params.stop_on_eos
    engine = everything.make_engine(OPTIONS)
    first = engine.generate([(1, 2, 3)], params)[0].token_ids[4]
    stopping = small_model(eos_token_id=first)
    for stop_on_eos, tokens in ((False, 20), (True, None)):
        served = Workload.alike(stopping, ((1, 2, 3),), 20, stop_on_eos=stop_on_eos, device="cpu")
        run = served.run(served.make_engine(OPTIONS))
        assert run.tokens == tokens if tokens else run.tokens <= 5


def test_the_limit_of_a_workload_is_that_of_its_steps():
    gpt2 = small_model().network
    steps = [decode_limit(gpt2, [3 + i, 2 + i], bandwidth=1e9) for i in range(8)]
    whole = workload_limit(gpt2, [3, 2], [9, 9], max_batch_size=2, bandwidth=1e9)
    assert whole.num_tokens == 16
    assert whole.num_bytes == sum(step.num_bytes for step in steps)
    assert whole.seconds == pytest.approx(sum(step.seconds for step in steps))


def test_the_published_limits_come_out():
    """LINEAGE: 64 x 512 at B = 64 about 226,000 tokens/s; 128 x 128, prompts of 1 and 4, about 700,000."""
    import torch

    from labkit.model import GPT2
    from labkit.model.random_configs import RANDOM_CONFIGS

    with torch.device("meta"):
        gpt2 = GPT2(RANDOM_CONFIGS["gpt2"]).half()
    gpt2.tie_weights()
    burst = workload_limit(gpt2, [1] * 64, [512] * 64, 64, bandwidth=3.0e12)
    assert burst.tokens_per_second == pytest.approx(226_000, rel=0.02)
    ragged = workload_limit(gpt2, [1, 4] * 64, [128] * 128, 128, bandwidth=3.0e12)
    assert ragged.tokens_per_second == pytest.approx(700_000, rel=0.05)
