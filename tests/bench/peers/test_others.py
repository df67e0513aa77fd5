"""Other engines: continuous batching, and vLLM, for which a stand-in answers."""

import sys
import types
from dataclasses import replace

import pytest
from peer_workloads import ALMOST_GREEDY, DRAWS, RAGGED, arriving, expected, with_params, workload

from labkit import SamplingParams
from labkit.bench.peers import others
from labkit.bench.peers.others import (
    as_transformers,
    cache_of,
    continuous_peer,
    quiet_transformers,
    vllm_peer,
    with_padded_vocabulary,
)
from labkit.bench.peers.run import CannotServeError

pytestmark = pytest.mark.slow
ASKED = [SamplingParams(n, stop_on_eos=False) for n in (2, 5, 3)]


def run(work):
    with quiet_transformers():
        return continuous_peer(work, with_padded_vocabulary(as_transformers(work.model)))()


def test_requests_that_arrive_later_are_waited_for():
    work = arriving(with_params(workload(), *ASKED), gap=0.05)
    made = run(work)
    assert made.token_ids == expected(work) and made.seconds > 0.1
    assert len(made.ttft) == 3 and len(made.itl) == 1 + 4 + 2
    assert 0 < made.first_token_seconds < made.seconds
    assert max(made.ttft) < made.seconds - 0.05  # from each one's arrival, not from the start


def test_requests_draw_by_one_rule():
    drawn = run(with_params(workload(), DRAWS, replace(DRAWS, seed=9), DRAWS))
    assert [len(ids) for ids in drawn.token_ids] == [6, 6, 6]
    almost = run(with_params(workload(RAGGED, 6), *[ALMOST_GREEDY] * 3))
    assert almost.token_ids == expected(workload(RAGGED, 6))
    with pytest.raises(CannotServeError, match="one rule"):
        continuous_peer(with_params(workload(), *ASKED[:2], DRAWS), None)


def test_the_cache_holds_a_batch_of_the_longest_and_no_more(monkeypatch):
    monkeypatch.setattr(others, "PAGE", 4)
    settings = cache_of(workload())  # the longest text has 5 + 4 tokens: 3 pages, for each of 2
    assert (settings.num_blocks, settings.max_requests_per_batch) == (2 * 3 + 1, 2)
    assert settings.max_batch_tokens == 5 + 1 + 2 and not settings.allow_block_sharing
    assert getattr(settings, "page_size", settings.block_size) == 4


def test_a_manager_that_stops_is_told():
    class Stopped:
        def get_result(self, timeout):
            return None

        def is_running(self):
            return False

    with pytest.raises(RuntimeError, match="stopped with 2 requests not done"):
        others.collect(Stopped(), 2)


# --- vLLM ------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The settings that the engine was made with, which is installed as it seems."""
    asked = {}

    class LLM:
        def __init__(self, **settings):
            asked.update(settings)

        def generate(self, prompts, params, use_tqdm):
            ids = [prompt["prompt_token_ids"] for prompt in prompts]
            made = [
                types.SimpleNamespace(token_ids=[p[0]] * wish.max_tokens)
                for p, wish in zip(ids, params, strict=True)
            ]
            return [types.SimpleNamespace(outputs=[m]) for m in made]

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, lambda **kw: types.SimpleNamespace(**kw)
    module.__spec__ = types.SimpleNamespace(name="vllm")
    monkeypatch.setitem(sys.modules, "vllm", module)
    return asked


def test_vllm_runs_where_it_is_installed(asked):
    work = workload()
    run = vllm_peer(work, as_transformers(work.model))()
    assert run.token_ids == ((5,) * 4, (10,) * 4, (11,) * 4) and run.first_token_seconds is None
    assert (asked["dtype"], asked["max_num_seqs"]) == ("float32", 2)


def test_vllm_says_what_it_cannot_do(asked, monkeypatch):
    with pytest.raises(CannotServeError, match="no request can join"):
        vllm_peer(arriving(workload()), None)
    monkeypatch.setattr(others, "find_spec", lambda name: None)
    with pytest.raises(CannotServeError, match="not installed here"):
        vllm_peer(workload(), None)
