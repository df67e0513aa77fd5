"""labkit as a peer: its tokens, and the times that a client sees."""

from dataclasses import replace

import pytest
from peer_workloads import RAGGED, arriving, expected, workload

from labkit.bench.peers.run import labkit_peer
from labkit.engine.config import CacheConfig

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rung", ["05", "10"])
def test_requests_that_arrive_later_are_waited_for_and_felt(rung):
    work = arriving(workload(RAGGED, 5), gap=0.05)
    run = labkit_peer(work, rung)()
    assert run.token_ids == expected(work)
    assert run.seconds > 0.1  # the last request came then
    assert len(run.ttft) == 3 and len(run.itl) == 3 * 4 and min(run.ttft) > 0 and min(run.itl) >= 0


def test_every_run_begins_without_prefixes():
    prompts = ((*range(130), 1), (*range(130), 2))
    work = replace(workload(prompts), cache=CacheConfig(16, prefix_cache=True))
    peer = labkit_peer(work, "10")
    engine = peer.args[1]
    assert peer().token_ids == peer().token_ids == expected(work)
    reused = engine.stats().counters.reused_tokens
    peer()
    assert engine.stats().counters.reused_tokens - reused == reused // 2
