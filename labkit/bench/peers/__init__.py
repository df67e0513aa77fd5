"""One workload through labkit and through other engines, its peers, with the same weights.

A peer is given token ids and gives token ids back; it is timed from outside, by one clock, from the moment
it has the requests until it has handed over every token.
"""

from labkit.bench.peers.compiled_loop import COMPILED
from labkit.bench.peers.continuous import CONTINUOUS
from labkit.bench.peers.generate import DYNAMIC, PADDED, STATIC
from labkit.bench.peers.run import PeerRun
from labkit.bench.peers.together import PEERS, PeerRuns, run_peers
from labkit.bench.peers.vllm import VLLM

__all__ = [
    "COMPILED",
    "CONTINUOUS",
    "DYNAMIC",
    "PADDED",
    "PEERS",
    "STATIC",
    "VLLM",
    "PeerRun",
    "PeerRuns",
    "run_peers",
]
