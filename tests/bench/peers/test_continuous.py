"""transformers' continuous batching: the engine's tokens, whatever joins, with a cache of a known size."""

from dataclasses import replace

import pytest
from peer_workloads import ALMOST_GREEDY, DRAWS, RAGGED, arriving, expected, with_params, workload

from labkit import SamplingParams
from labkit.bench.peers import continuous
from labkit.bench.peers.continuous import cache_of, continuous_peer
from labkit.bench.peers.generate import as_transformers, quiet_transformers, with_padded_vocabulary
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
    monkeypatch.setattr(continuous, "PAGE", 4)
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
        continuous.collect(Stopped(), 2)
