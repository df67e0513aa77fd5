"""The loads: each asks for what its name says, the same for the same seed, and every engine serves it."""

import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers import small_model

from labkit import LADDER, CacheConfig, SamplingParams, SchedulerConfig
from labkit.bench.limit import workload_limit
from labkit.bench.loads import LOADS, Asked, make_load
from labkit.bench.workload import Request, Workload
from labkit.errors import OptionError
from labkit.model.random_configs import RANDOM_CONFIGS

GPT2 = RANDOM_CONFIGS["gpt2"]
GREEDY = SamplingParams(64, stop_on_eos=False)


def asked(count=64, model=GPT2, params=GREEDY, **changes) -> Asked:
    return Asked((Request((7,), params),) * count, model, **changes)


def load(name, **changes):
    return make_load(name, asked(**changes))


@pytest.mark.parametrize("name", LOADS)
def test_a_load_has_as_many_requests_as_asked_for_and_is_the_same_for_the_same_seed(name):
    assert len(load(name)) == 64
    assert load(name) == load(name)
    assert all(not request.params.stop_on_eos for request in load(name))
    if name != "alike":
        assert load(name, seed=1) != load(name)


def test_all_sampled_requests_draw_and_each_has_a_seed_of_its_own():
    requests = load("sampled", seed=5)
    assert [request.params.seed for request in requests] == list(range(5, 69))
    assert {(r.prompt, r.params.temperature, r.params.top_p, r.params.max_new_tokens) for r in requests} == {
        ((7,), 0.8, 0.95, 64)
    }


def test_ragged_lengths_have_the_median_and_the_end_that_they_are_said_to_have():
    requests = load("ragged", count=4000, params=SamplingParams(200, stop_on_eos=False))
    prompts = [len(request.prompt) for request in requests]
    answers = [request.params.max_new_tokens for request in requests]
    assert statistics.median(prompts) == pytest.approx(100, rel=0.1)
    assert statistics.median(answers) == pytest.approx(100, rel=0.1)
    assert (max(prompts), max(answers)) == (800, 200) and min(prompts + answers) >= 1
    assert statistics.quantiles(prompts, n=20)[0] == pytest.approx(100 * 2.718281828 ** (-1.645), rel=0.2)
    assert {request.params.is_greedy for request in requests} == {True}


def test_every_prompt_of_the_heavy_load_is_another_of_512_tokens():
    prompts = [request.prompt for request in load("prompt-heavy")]
    assert {len(prompt) for prompt in prompts} == {512} and len(set(prompts)) == 64


def test_an_assistants_users_ask_short_questions_of_unequal_length_behind_one_system_prompt():
    requests = load("assistant", count=4000, params=SamplingParams(32, stop_on_eos=False))
    assert len({request.prompt[:512] for request in requests}) == 1
    questions = [len(request.prompt) - 512 for request in requests]
    answers = [request.params.max_new_tokens for request in requests]
    assert (min(questions), max(questions), max(answers)) == (1, 64, 32)
    assert statistics.median(questions) == statistics.median(answers) == 16


@pytest.mark.slow
def test_arrivals_are_the_ragged_requests_at_the_rate_asked_for():
    requests = make_load("arrivals", asked(count=4000, rate=50.0))
    assert [replace(request, arrives_at=0.0) for request in requests] == list(load("ragged", count=4000))
    times = [request.arrives_at for request in requests]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0 and min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.1)  # of a Poisson process: as the mean
    assert gaps[0] != random.Random(0).expovariate(50.0)  # lengths are drawn from the seed's own numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADS)
def test_a_small_model_is_asked_for_less_and_serves_all_of_it(name):
    """Lengths follow the positions, 64 here; all tokens are made, and the limit is that of these."""
    model = small_model()
    requests = load(name, count=6, model=model.config, params=SamplingParams(12, stop_on_eos=False))
    requests = tuple(replace(request, arrives_at=0.0) for request in requests)
    cache = CacheConfig(4, prefix_cache=name in ("shared-prefix", "assistant"))
    served = Workload(model, requests, "cpu", SchedulerConfig(max_batch_size=3), cache)
    run = served.run(served.make_engine(LADDER["10"].options))
    made = sorted(zip(run.prompt_lens, run.new_tokens, strict=True))
    assert made == sorted((len(r.prompt), r.params.max_new_tokens) for r in requests)
    lens, tokens = zip(*made, strict=True)
    limit = workload_limit(model.network, lens, tokens, 3, 1e9)
    assert served.limit(1e9, run=run).num_bytes == limit.num_bytes


def test_requests_that_come_later_are_not_served_where_nothing_waits_for_them():
    model = small_model()
    requests = make_load("arrivals", asked(3, model.config, SamplingParams(4), rate=1000.0))
    served = Workload(model, requests, "cpu", cache=CacheConfig(4, prefix_cache=False))
    with pytest.raises(OptionError, match="one after another are served by `streaming` and `loads` only"):
        served.run(served.make_engine(LADDER["00"].options))
