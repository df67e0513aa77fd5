"""A run counts tokens as ids; a workload that cannot be served is refused with a sentence."""

from dataclasses import replace

import pytest
from peer_workloads import ALMOST_GREEDY, DRAWS, with_params, workload

from labkit import SamplingParams
from labkit.bench.peers.run import CannotServeError, PeerRun, one_rule


def test_tokens_are_counted_as_ids():
    run = PeerRun(2.0, 0.5, ((1, 2, 3), (4,)))
    assert (run.tokens, run.tokens_per_second) == (4, 2.0)


def test_seeds_and_lengths_may_differ_but_not_the_rule():
    work = with_params(workload(), DRAWS, replace(DRAWS, seed=9), replace(DRAWS, max_new_tokens=2))
    assert one_rule(work) == SamplingParams(1, temperature=0.8, top_p=0.95, stop_on_eos=False)
    with pytest.raises(CannotServeError, match="these have several"):
        one_rule(with_params(workload(), DRAWS, DRAWS, ALMOST_GREEDY))
