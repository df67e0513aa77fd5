"""A workload's runs: what is counted, what is timed, and the limit that it is held against."""

import json
import time
from dataclasses import replace

import pytest
from helpers import small_model

from labkit import LADDER, CacheConfig, SchedulerConfig
from labkit.bench import Workload, decode_limit, workload_limit
from labkit.errors import RequestError
from labkit.results import Run

OPTIONS = LADDER["00"].options


def workload(prompts=((1, 2, 3), (4, 5)), max_new_tokens=9, **changes) -> Workload:
    settings = {"device": "cpu", "cache": CacheConfig(4, prefix_cache=False), **changes}
    return Workload.alike(small_model(), prompts, max_new_tokens, **settings)


def test_a_workload_knows_its_longest_text_and_whether_someone_comes_later():
    served = workload()
    assert served.longest == 3 + 9 and not served.has_arrivals
    first, second = served.requests
    assert replace(served, requests=(first, replace(second, arrives_at=0.1))).has_arrivals


def test_the_limit_of_what_is_asked_is_that_of_a_run_that_makes_it_all():
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    assert served.requested_limit(1e9) == served.limit(run, 1e9)


def test_first_tokens_belong_to_the_prefill():
    """Trap 2: they are made there, so the decode's rate leaves them out."""
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    assert (run.tokens, run.decoded_tokens, run.decode_steps) == (18, 16, 8)
    assert run.decode_rate == pytest.approx(16 / run.decode_seconds)
    assert run.prefill_seconds > 0
    assert run.prefill_seconds + run.decode_seconds <= run.seconds


def test_the_shares_of_a_run_add_up_to_no_more_than_the_run():
    """A step goes on after its tokens have their times: what it does then is in its share, and in the run."""
    served = workload()
    engine = served.make_engine(OPTIONS)
    finish = engine._finish

    def finish_slowly(*args):
        time.sleep(0.005)
        return finish(*args)

    engine._finish = finish_slowly
    run = served.run(engine)
    assert run.decode_seconds > 0.01  # both requests end in the last step
    assert run.prefill_seconds + run.decode_seconds <= run.seconds


def test_tokens_are_ids_however_they_read():
    """Trap 2: bytes that are no text decode to replacement characters, which encode to other tokens."""
    served = workload(prompts=((200, 201),), max_new_tokens=12)
    engine = served.make_engine(OPTIONS)
    assert served.run(engine).new_tokens == (12,)


def test_a_run_knows_its_requests_and_its_paths():
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    assert sorted(zip(run.prompt_lens, run.new_tokens, strict=True)) == [(2, 9), (3, 9)]
    assert run.append_paths == {"boundary": 2 * 2 * 2, "in_place": 2 * 2 * 6}  # decoding alone, both layers
    assert len(run.latency.ttft) == 2 and len(run.latency.itl) == 16


def test_progress_is_told_of_the_tokens_of_each_step():
    served, told = workload(), []
    served.run(served.make_engine(OPTIONS), told.append)
    assert told == [2] * 9


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


def test_runs_on_one_engine_are_counted_apart():
    served = workload()
    engine = served.make_engine(OPTIONS)
    first, second = served.run(engine), served.run(engine)
    assert second.append_paths == first.append_paths
    assert (second.tokens, second.decode_steps) == (first.tokens, first.decode_steps)


def test_text_is_tokenized_on_arrival_and_ids_are_not():
    texts, ids = workload(prompts=("ab", "c")), workload(prompts=((97, 98), (99,)))
    assert texts.prompt_ids() == [[97, 98], [99]] and ids.prompt_ids() == [(97, 98), (99,)]
    runs = [w.run(w.make_engine(OPTIONS)) for w in (texts, ids)]
    assert sorted(runs[0].prompt_lens) == sorted(runs[1].prompt_lens) == [1, 2]


def test_the_pool_is_as_large_as_the_workload_needs():
    served = workload(scheduler=SchedulerConfig(max_batch_size=1))
    engine = served.make_engine(OPTIONS)
    assert engine.stats().blocks_per_layer == 3  # 3 + 9 tokens in blocks of 4, one request at a time
    assert served.run(engine).tokens == 18 and engine.stats().counters.preemptions == 0


def test_the_pool_has_room_for_the_longest_of_the_prompts():
    served = workload(prompts=((1,), tuple(range(8)), (2, 3)))
    assert served.make_engine(OPTIONS).stats().blocks_per_layer == 3 * 5  # 8 + 9 tokens in blocks of 4


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


def test_a_record_of_a_run_keeps_every_number():
    served = workload()
    run = served.run(served.make_engine(OPTIONS))
    raw = json.loads(json.dumps(run.to_dict()))
    assert raw["tokens"] == 18 and raw["append_paths"] == run.append_paths
    assert raw["ttft"] == pytest.approx(run.latency.ttft, abs=1e-6)
    assert Run.from_dict(raw).gaps_us == pytest.approx([1e6 * gap for gap in run.latency.itl], abs=1)
    assert len(raw["tpot"]) == len(raw["latency"]) == len(raw["queue_wait"]) == 2


def test_the_limit_of_a_workload_is_that_of_its_steps():
    gpt2 = small_model().network
    steps = [decode_limit(gpt2, [3 + i, 2 + i], bandwidth=1e9) for i in range(8)]
    whole = workload_limit(gpt2, [3, 2], [9, 9], max_batch_size=2, bandwidth=1e9)
    assert whole.num_tokens == 16
    assert whole.num_bytes == sum(step.num_bytes for step in steps)
    assert whole.seconds == pytest.approx(sum(step.seconds for step in steps))


def test_a_run_is_held_against_the_limit_of_what_it_did():
    served = workload(scheduler=SchedulerConfig(max_batch_size=1))
    run = served.run(served.make_engine(OPTIONS))
    gpt2 = served.model.network
    expected = workload_limit(gpt2, [3, 2], [9, 9], max_batch_size=1, bandwidth=1e9)
    assert served.limit(run, bandwidth=1e9) == expected
    assert expected != workload_limit(gpt2, [3, 2], [9, 9], max_batch_size=2, bandwidth=1e9)


def test_a_smaller_batch_reads_the_weights_more_often():
    gpt2 = small_model().network
    together, apart = (workload_limit(gpt2, [3, 3], [9, 9], size, 1e9) for size in (2, 1))
    assert apart.weight_bytes == 2 * together.weight_bytes
    assert apart.kv_bytes == together.kv_bytes


def test_the_limit_follows_what_was_generated():
    gpt2 = small_model().network
    limit = workload_limit(gpt2, [3, 2], [9, 1], max_batch_size=2, bandwidth=1e9)  # the second decodes none
    assert limit.num_bytes == sum(decode_limit(gpt2, [3 + i], 1e9).num_bytes for i in range(8))


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
